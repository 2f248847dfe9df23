// Command publisher is NSQ's own Go client doing the least it can: it publishes a number of
// messages, then prints one line of JSON. Benchmarks compare with it.
package main

import (
	"bytes"
	"flag"
	"log"
	"os"

	"github.com/nsqio/go-nsq"

	"nsq-gateway/tools/measure"
)

// publisher publishes to one topic, one message or one batch at a time.
type publisher struct {
	producer *nsq.Producer
	topic    string
	bodies   [][]byte
}

// publish waits for the answer.
func (p publisher) publish() error {
	if len(p.bodies) == 1 {
		return p.producer.Publish(p.topic, p.bodies[0])
	}
	return p.producer.MultiPublish(p.topic, p.bodies)
}

// start does not wait; the answer comes through done.
func (p publisher) start(done chan *nsq.ProducerTransaction) error {
	if len(p.bodies) == 1 {
		return p.producer.PublishAsync(p.topic, p.bodies[0], done)
	}
	return p.producer.MultiPublishAsync(p.topic, p.bodies, done)
}

// run publishes count times, each after the answer to the one before.
func (p publisher) run(count int64) error {
	for ; count > 0; count-- {
		if err := p.publish(); err != nil {
			return err
		}
	}
	return nil
}

// runPipelined publishes count times with so many answers due at most.
func (p publisher) runPipelined(count int64, inFlight int64) error {
	done := make(chan *nsq.ProducerTransaction, inFlight)
	for started, answered := int64(0), int64(0); answered < count; {
		for started < count && started-answered < inFlight {
			if err := p.start(done); err != nil {
				return err
			}
			started++
		}
		if transaction := <-done; transaction.Error != nil {
			return transaction.Error
		}
		answered++
	}
	return nil
}

func main() {
	flags := measure.AddFlags()
	bodyBytes := flag.Int("body-bytes", 200, "size of a message")
	batch := flag.Int64("batch", 1, "messages of one command; count is a multiple of it")
	inFlight := flag.Int64("in-flight", 1, "commands whose answers may be due at a time")
	flag.Parse()
	if *flags.Topic == "" || *batch < 1 || *inFlight < 1 || *bodyBytes < 1 ||
		*flags.Count < 1 || *flags.Count%*batch != 0 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}

	producer, err := nsq.NewProducer(*flags.Address, flags.Config())
	if err != nil {
		log.Fatal(err)
	}
	producer.SetLoggerLevel(nsq.LogLevelError)
	// Connected before the clock starts.
	if err := producer.Ping(); err != nil {
		log.Fatal(err)
	}
	bodies := make([][]byte, *batch)
	for i := range bodies {
		bodies[i] = bytes.Repeat([]byte("x"), *bodyBytes)
	}
	p := publisher{producer, *flags.Topic, bodies}
	meter := measure.Start()
	if *inFlight == 1 {
		err = p.run(*flags.Count / *batch)
	} else {
		err = p.runPipelined(*flags.Count / *batch, *inFlight)
	}
	report := meter.Stop(*flags.Count)
	if err != nil {
		log.Fatal(err)
	}
	producer.Stop()
	report.Print()
}
