module nsq-gateway/tools/pod-security

go 1.26.0

require k8s.io/pod-security-admission v0.37.2
