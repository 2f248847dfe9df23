module nsq-gateway/tools/socket-client

go 1.18

require github.com/gorilla/websocket v1.5.3
