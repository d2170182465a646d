# Two images: `docker build --target=cpu .` and `docker build --target=cuda .`
# The working directory, /results, is where a run writes and reads: mount a directory there.
#
#   docker run --rm --init --user="$(id -u):$(id -g)" --volume="$PWD:/results" IMAGE --device=cpu --model=resnet50
#
# With GPUs add --gpus=all --ipc=host: docs/howto/gpus.md

FROM python:3.13-slim-trixie AS wheel
COPY . /suite
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir=/wheel /suite

FROM python:3.13-slim-trixie AS base
# Any user may write to /results and, with a read-only root, to a volume at /tmp.
RUN useradd --uid=1000 --no-create-home bench && install --directory --mode=1777 /results
ENV HOME=/tmp
WORKDIR /results
VOLUME /results
ENTRYPOINT ["run-bench"]

# TensorFlow is a layer of its own, so that a change of the suite builds only the small layer behind it.
FROM base AS cuda
RUN --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    python -m pip install --no-cache-dir -c /constraints.txt 'tensorflow[and-cuda]'
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    python -m pip install --no-cache-dir -c /constraints.txt "$(echo /wheel/*.whl)[cuda]"
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000

FROM base AS cpu
RUN --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    python -m pip install --no-cache-dir -c /constraints.txt tensorflow
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    python -m pip install --no-cache-dir -c /constraints.txt /wheel/*.whl
USER 1000:1000
