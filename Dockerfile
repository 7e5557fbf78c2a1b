# An index behind HTTP, read-only, as a user without rights:
#   docker build -t medir .
#   docker run --rm -p 8000:8000 -e MEDIR_SERVE_KEY -v "$PWD/my-index:/index:ro" medir
# torch's default wheels bring CUDA; --build-arg TORCH=… takes another requirement, such as the URL of a CPU wheel.
FROM python:3.11-slim
ARG TORCH=torch==2.13.0
COPY requirements/lock-py311-cpu.txt /opt/medir/requirements/
RUN pip install --no-cache-dir "$TORCH" \
    && pip install --no-cache-dir --no-deps -r /opt/medir/requirements/lock-py311-cpu.txt
COPY . /opt/medir
RUN pip install --no-cache-dir --no-deps --no-build-isolation /opt/medir \
    && useradd --create-home medir
USER medir
WORKDIR /home/medir
ENV HF_HUB_OFFLINE=1
EXPOSE 8000
ENTRYPOINT ["medir", "serve", "/index", "--host", "0.0.0.0"]
