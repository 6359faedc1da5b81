# A host of today: containerd and kubelet as a package of theirs lays them out.
FROM gpunode-lab/host:new
ARG PACKAGES
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get -y install --no-install-recommends $PACKAGES \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY bin /usr/bin
