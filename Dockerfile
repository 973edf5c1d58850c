# gpuemu-flow as a container: docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/workspace" gpuemu-flow run
FROM python:3.12-slim
COPY pyproject.toml README.md LICENSE /source/
COPY gpuemu_flow /source/gpuemu_flow
RUN pip install --no-cache-dir /source && rm -r /source
# Who mounts a folder into the container has chosen it, whoever owns its files.
ENV GPUEMU_TRUST=1
WORKDIR /workspace
ENTRYPOINT ["gpuemu-flow"]
