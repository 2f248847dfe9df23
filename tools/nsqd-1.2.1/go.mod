module nsq-gateway/tools/nsqd-1.2.1

go 1.17

require github.com/nsqio/nsq v1.2.1

require (
	github.com/BurntSushi/toml v0.3.1 // indirect
	github.com/blang/semver v3.5.1+incompatible // indirect
	github.com/bmizerany/perks v0.0.0-20141205001514-d9a9656a3a4b // indirect
	github.com/golang/snappy v0.0.1 // indirect
	github.com/judwhite/go-svc v1.2.1 // indirect
	github.com/julienschmidt/httprouter v1.3.0 // indirect
	github.com/mreiferson/go-options v1.0.0 // indirect
	github.com/nsqio/go-diskqueue v1.0.0 // indirect
	github.com/nsqio/go-nsq v1.0.8 // indirect
	golang.org/x/sys v0.0.0-20210124154548-22da62e12c0c // indirect
)

// nsq replaces go-svc in its own go.mod; a replacement counts only in the main module.
replace github.com/judwhite/go-svc => github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6
