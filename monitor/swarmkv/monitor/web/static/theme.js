// Before anything is drawn: the theme that was chosen here, if any.
"use strict";
try {
  const theme = localStorage.getItem("swarmkv-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch (_) {
  // storage is off: the system's theme it is
}
