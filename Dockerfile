# Build stage: pinned requirements into a virtual environment, then forwarder without touching them.
FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements/run.txt requirements/build.txt requirements/
RUN python -m venv /opt/forwarder \
    && /opt/forwarder/bin/pip install --require-hashes --only-binary :all: -r requirements/run.txt \
    && pip install --require-hashes --only-binary :all: -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY forwarder/ forwarder/
RUN pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/forwarder/bin/pip install --no-deps --no-index wheels/*.whl

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin forwarder
COPY --from=build /opt/forwarder /opt/forwarder
# A container is reached from outside: unlike the command, the image listens on all its interfaces.
ENV PATH=/opt/forwarder/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FORWARDER_SOURCES__HTTP__LISTEN=0.0.0.0:8320 \
    FORWARDER_ADMIN__LISTEN=0.0.0.0:8321
USER 10001
EXPOSE 8320 8321
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=5s CMD ["forwarder", "health"]
ENTRYPOINT ["forwarder"]
CMD ["run"]
