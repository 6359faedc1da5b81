module lab

go 1.24

require (
	github.com/beorn7/perks v0.0.0-20160229213445-3ac7bf7a47d1
	github.com/docker/distribution v0.0.0-20170726174610-edc3ab29cdff
	github.com/fsnotify/fsnotify v1.4.2
	github.com/ghodss/yaml v0.0.0-20150909031657-73d445a93680
	github.com/gogo/protobuf v0.0.0-20170330071051-c0656edd0d9e
	github.com/golang/glog v0.0.0-20141105023935-44145f04b68c
	github.com/golang/protobuf v1.0.0
	github.com/google/gofuzz v0.0.0-20161122191042-44d81051d367
	github.com/json-iterator/go v0.0.0-20180612202835-f2b4162afba3
	github.com/kr/fs v0.0.0-20131111012553-2788f0dbd169
	github.com/matttproud/golang_protobuf_extensions v0.0.0-20150406173934-fc2b8d3a73c4
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 v0.0.0-20180320133207-05fbef0ca5da
	github.com/opencontainers/go-digest v0.0.0-20170106003457-a6d0ee40d420
	github.com/pkg/errors v0.8.0
	github.com/pkg/sftp v0.0.0-20160930220758-4d0e916071f6
	github.com/prometheus/client_golang v0.0.0-20170531130054-e7e903064f5e
	github.com/prometheus/client_model v0.0.0-20150212101744-fa8ad6fec335
	github.com/prometheus/common v0.0.0-20170427095455-13ba4ddd0caa
	github.com/prometheus/procfs v0.0.0-20170519190837-65c1f6f8f0fc
	github.com/spf13/afero v0.0.0-20160816080757-b28a7effac97
	github.com/spf13/pflag v0.0.0-20170130214245-9ff6c6923cff
	golang.org/x/crypto v0.0.0-20170825220121-81e90905daef
	golang.org/x/net v0.0.0-20170809000501-1c05540f6879
	golang.org/x/sys v0.0.0-20171031081856-95c657629925
	golang.org/x/text v0.0.0-20170810154203-b19bf474d317
	google.golang.org/genproto v0.0.0-20170731182057-09f6ed296fc6
	google.golang.org/grpc v1.7.5
	gopkg.in/inf.v0 v0.9.0
	gopkg.in/yaml.v2 v2.0.0
	k8s.io/kubernetes v1.10.13
)
