// Command client is a program on go-nsq: it publishes four messages and consumes them; see
// tests/support/brokers/clients/program.py for what every such program does.
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log"
	"os"
	"time"

	"github.com/nsqio/go-nsq"

	"nsq-gateway/tools/measure"
)

const deferral = 50 * time.Millisecond

// handle prints one delivery, and answers it.
func handle(message *nsq.Message) error {
	message.DisableAutoResponse()
	line, err := json.Marshal([]interface{}{string(message.Body), message.Attempts})
	if err != nil {
		return err
	}
	os.Stdout.Write(append(line, '\n'))
	switch {
	case string(message.Body) == "requeue" && message.Attempts == 1:
		message.RequeueWithoutBackoff(0)
		return nil
	case string(message.Body) == "touch":
		message.Touch()
	}
	message.Finish()
	return nil
}

func main() {
	rootCAFile := flag.String("root-ca-file", "", "use TLS, and trust this authority (PEM)")
	snappy := flag.Bool("snappy", false, "use snappy")
	deflate := flag.Bool("deflate", false, "use deflate")
	secret := flag.String("secret", "", "the secret for AUTH")
	flag.Parse()
	address, topic := flag.Arg(0), flag.Arg(1)
	config := measure.Config(*rootCAFile)
	config.Snappy, config.Deflate, config.AuthSecret = *snappy, *deflate, *secret
	config.MaxInFlight = 5

	producer, err := nsq.NewProducer(address, config)
	if err != nil {
		log.Fatal(err)
	}
	if err := producer.Publish(topic, []byte("finish")); err != nil {
		log.Fatal(err)
	}
	if err := producer.MultiPublish(topic, [][]byte{[]byte("requeue"), []byte("touch")}); err != nil {
		log.Fatal(err)
	}
	if err := producer.DeferredPublish(topic, deferral, []byte("deferred")); err != nil {
		log.Fatal(err)
	}
	consumer, err := nsq.NewConsumer(topic, "channel", config)
	if err != nil {
		log.Fatal(err)
	}
	consumer.AddHandler(nsq.HandlerFunc(handle))
	if err := consumer.ConnectToNSQD(address); err != nil {
		log.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		log.Fatal(err)
	}
}
