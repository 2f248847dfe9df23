module nsq-gateway/tools/steady

go 1.22

require (
	github.com/HdrHistogram/hdrhistogram-go v1.1.2
	github.com/valyala/fasthttp v1.55.0
)

require (
	github.com/andybalholm/brotli v1.1.0 // indirect
	github.com/klauspost/compress v1.17.9 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
)
