module lab

go 1.24

require (
	github.com/PuerkitoBio/purell v1.0.0
	github.com/PuerkitoBio/urlesc v0.0.0-20160726150825-5bd2802263f2
	github.com/davecgh/go-spew v1.1.0
	github.com/emicklei/go-restful v2.9.5+incompatible
	github.com/ghodss/yaml v0.0.0-20150909031657-73d445a93680
	github.com/go-openapi/jsonpointer v0.0.0-20160704185906-46af16f9f7b1
	github.com/go-openapi/jsonreference v0.0.0-20160704190145-13c6e3589ad9
	github.com/go-openapi/spec v0.0.0-20160808142527-6aced65f8501
	github.com/go-openapi/swag v0.0.0-20160704191624-1d0bd113de87
	github.com/gogo/protobuf v0.0.0-20170330071051-c0656edd0d9e
	github.com/golang/glog v0.0.0-20141105023935-44145f04b68c
	github.com/golang/protobuf v1.0.0
	github.com/google/gofuzz v0.0.0-20161122191042-44d81051d367
	github.com/json-iterator/go v0.0.0-20180612202835-f2b4162afba3
	github.com/mailru/easyjson v0.0.0-20160728113105-d5b7844b561a
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 v0.0.0-20180320133207-05fbef0ca5da
	github.com/spf13/pflag v0.0.0-20170130214245-9ff6c6923cff
	golang.org/x/net v0.0.0-20170809000501-1c05540f6879
	golang.org/x/text v0.0.0-20170810154203-b19bf474d317
	google.golang.org/genproto v0.0.0-20170731182057-09f6ed296fc6
	google.golang.org/grpc v1.3.0
	gopkg.in/inf.v0 v0.9.0
	gopkg.in/yaml.v2 v2.0.0
	k8s.io/kube-openapi v0.0.0-20171101183504-39a7bf85c140
	k8s.io/kubernetes v1.8.15
)
