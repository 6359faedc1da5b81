# A host of 2018 that was never rebuilt: Debian's docker, and the last kubelet that speaks to it.
FROM gpunode-lab/host:new
ARG PACKAGES
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get -y install --no-install-recommends $PACKAGES \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY bin /usr/bin
