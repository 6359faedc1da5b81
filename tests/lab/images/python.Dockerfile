# The base of the device plugin's image: Python and nothing that compiles.
FROM gpunode-lab/debian:new
ARG PACKAGES
COPY apt /etc/apt
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get -y upgrade \
 && DEBIAN_FRONTEND=noninteractive apt-get -y install --no-install-recommends $PACKAGES \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc /usr/share/man /usr/share/locale
CMD ["python3"]
