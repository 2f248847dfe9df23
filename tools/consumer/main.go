// Command consumer is NSQ's own Go client doing the least it can: it consumes and FINishes a number
// of messages, then prints one line of JSON. Benchmarks compare with it.
package main

import (
	"flag"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/nsqio/go-nsq"

	"nsq-gateway/tools/measure"
)

// counter finishes messages (by returning nil) and closes done at the last one.
type counter struct {
	want, seen int64
	meter      measure.Meter
	report     measure.Report
	done       chan struct{}
}

// HandleMessage counts one message; go-nsq sends its FIN when nil is returned.
func (c *counter) HandleMessage(*nsq.Message) error {
	switch seen := atomic.AddInt64(&c.seen, 1); {
	case seen == 1:
		c.meter = measure.Start()
		if c.want == 1 {
			c.finish()
		}
	case seen == c.want:
		c.finish()
	}
	return nil
}

func (c *counter) finish() {
	c.report = c.meter.Stop(c.want)
	close(c.done)
}

func main() {
	flags := measure.AddFlags()
	channel := flag.String("channel", "", "channel (required)")
	maxInFlight := flag.Int("max-in-flight", 2500, "messages in flight at most")
	flag.Parse()
	if *flags.Topic == "" || *channel == "" || *flags.Count < 1 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}

	config := flags.Config()
	config.MaxInFlight = *maxInFlight
	// All that is compared asks for the same; at nsqd's default of 250 ms a small window would wait.
	config.OutputBufferTimeout = 25 * time.Millisecond
	consumer, err := nsq.NewConsumer(*flags.Topic, *channel, config)
	if err != nil {
		log.Fatal(err)
	}
	consumer.SetLoggerLevel(nsq.LogLevelError)
	handler := &counter{want: *flags.Count, done: make(chan struct{})}
	// One handler: messages are counted in one goroutine, so the first is really the first.
	consumer.AddHandler(handler)
	if err := consumer.ConnectToNSQD(*flags.Address); err != nil {
		log.Fatal(err)
	}
	<-handler.done
	consumer.Stop()
	<-consumer.StopChan
	handler.report.Print()
}
