// Live pages: blocks of HTML that changed, and text as it is said, over one stream of server-sent events.
"use strict";

const body = document.body;
const TAIL_CHARS = 6000;

// ---- theme: as the system, light, dark

const themes = ["", "light", "dark"];
const themeButton = document.getElementById("theme");

function showTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  themeButton.setAttribute("aria-label", "Theme: " + (theme || "as the system"));
  themeButton.title = "Theme: " + (theme || "as the system");
}

themeButton.addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "";
  const next = themes[(themes.indexOf(now) + 1) % themes.length];
  showTheme(next);
  try {
    localStorage.setItem("swarmkv-theme", next);
  } catch (_) {
    // it lasts until the next page then
  }
});
showTheme(document.documentElement.dataset.theme || "");

// ---- forms

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.confirm && !window.confirm(form.dataset.confirm)) {
    event.preventDefault();
    return;
  }
  const token = form.elements.namedItem("form_token");
  if (token && !token.value) token.value = body.dataset.formToken;
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-auto]")) event.target.form.requestSubmit();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const search = document.getElementById("search");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "p" && !liveButton.hidden) {
    liveButton.click();
  }
});

// ---- text of branches: the end of each

const tails = new Map(); // index -> {length: of all that was said, text: its end}

function say(index, offset, text) {
  let tail = tails.get(index);
  if (!tail || offset === 0 || offset !== tail.length) {
    tail = { length: offset, text: offset > 0 ? "…" : "" };
    tails.set(index, tail);
  }
  tail.length += text.length;
  tail.text += text;
  const isCut = tail.text.length > 2 * TAIL_CHARS;
  if (isCut) tail.text = "…" + tail.text.slice(-TAIL_CHARS);
  const place = document.querySelector('[data-tail="' + index + '"]');
  if (place) showTail(place, tail);
}

function showTail(place, tail) {
  const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 24;
  const shown = place.firstChild;
  if (shown && tail.text.startsWith(shown.data)) shown.appendData(tail.text.slice(shown.length));
  else place.textContent = tail.text;
  if (isAtEnd) place.scrollTop = place.scrollHeight;
}

// ---- blocks

const held = new Map(); // blocks that wait until a selection inside of them has gone

function isSelecting(block) {
  const selection = document.getSelection();
  return selection && !selection.isCollapsed && block.contains(selection.anchorNode);
}

function show(name, html) {
  const block = document.getElementById(name);
  if (!block) return;
  if (isSelecting(block)) {
    held.set(name, html);
    return;
  }
  const focused = block.contains(document.activeElement) ? document.activeElement.id : "";
  block.innerHTML = html;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  for (const place of block.querySelectorAll("[data-tail]")) {
    const tail = tails.get(Number(place.dataset.tail));
    if (tail) showTail(place, tail);
  }
}

document.addEventListener("selectionchange", () => {
  for (const [name, html] of [...held]) {
    const block = document.getElementById(name);
    if (block && isSelecting(block)) continue;
    held.delete(name);
    show(name, html);
  }
});

// ---- the stream

const liveButton = document.getElementById("live");
const away = document.getElementById("away");
let stream = null;
let isPaused = false;

function sayAway(text) {
  away.textContent = text;
  away.hidden = !text;
}

function showLive(state, label) {
  liveButton.className = "quiet live " + state;
  liveButton.lastElementChild.textContent = label;
  liveButton.setAttribute("aria-pressed", String(isPaused));
}

function connect() {
  if (stream || isPaused || document.hidden) return;
  stream = new EventSource(body.dataset.live);
  showLive("joining", "Joining");
  stream.onopen = () => {
    showLive("on", "Live");
    sayAway("");
  };
  stream.onerror = () => {
    showLive("joining", "Joining");
    if (stream.readyState === EventSource.CLOSED) {
      sayAway("The monitor does not answer as it did: reload the page.");
      disconnect();
      showLive("off", "Off");
    }
  };
  stream.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.away) sayAway(message.away + " What is shown is from before.");
    if (message.back) sayAway("");
    for (const [name, html] of Object.entries(message.blocks || {})) show(name, html);
    for (const [index, offset, text] of message.text || []) say(index, offset, text);
    if (message.over) {
      sayAway(message.over);
      disconnect();
      showLive("off", "Off");
    }
  };
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

if (body.dataset.live) {
  liveButton.hidden = false;
  liveButton.addEventListener("click", () => {
    isPaused = !isPaused;
    if (isPaused) {
      disconnect();
      showLive("paused", "Paused");
    } else {
      connect();
    }
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  connect();
}
