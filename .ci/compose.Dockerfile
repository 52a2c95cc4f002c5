# What stands in for the images that compose.yaml gets from a registry, one stage each: Debian's packages and the
# embedded store's Valkey, started as those images start theirs. The build's context is that Valkey's folder.
FROM python:3.11-slim AS store
RUN apt-get update -q && apt-get install -qy --no-install-recommends redis-tools \
    && useradd --system --home-dir /data --create-home valkey && ln -s redis-cli /usr/bin/valkey-cli
COPY valkey-server /usr/bin/
RUN printf '%s\n' '#!/bin/sh' 'set -e' \
    'if [ "$1" = valkey-server ] && [ "$(id -u)" = 0 ]; then' \
    '  find . ! -user valkey -exec chown valkey {} +' \
    '  exec setpriv --reuid=valkey --regid=valkey --clear-groups -- "$0" "$@"' \
    'fi' \
    'if [ "$(umask)" = 0022 ]; then umask 0077; fi' \
    'exec "$@"' > /usr/bin/docker-entrypoint.sh && chmod 755 /usr/bin/docker-entrypoint.sh
VOLUME /data
WORKDIR /data
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["valkey-server"]

FROM python:3.11-slim AS caddy
RUN apt-get update -q && apt-get install -qy --no-install-recommends caddy
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]

FROM python:3.11-slim AS prometheus
RUN apt-get update -q && apt-get install -qy --no-install-recommends prometheus && install -d -o nobody /prometheus
USER nobody
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]

# Debian has no Grafana: this one answers at its port, and does no more.
FROM python:3.11-slim AS grafana
USER nobody
WORKDIR /var/lib/grafana
CMD ["python", "-m", "http.server", "3000"]
