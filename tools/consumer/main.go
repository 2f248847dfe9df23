// Command consumer is NSQ's own Go client doing the least it can: it consumes and FINishes a number
// of messages, then prints one line of JSON. Benchmarks compare the gateway's delivery with it.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nsqio/go-nsq"
)

// report is the line that is printed at the end.
type report struct {
	Messages int64 `json:"messages"`
	// Seconds is the wall clock from the first message to the last.
	Seconds float64 `json:"seconds"`
	// CPUSeconds is the user and system time of this process over the same span.
	CPUSeconds float64 `json:"cpu_seconds"`
}

// counter finishes messages (by returning nil) and closes done at the last one.
type counter struct {
	want, seen int64
	startWall  time.Time
	startCPU   time.Duration
	result     report
	done       chan struct{}
}

// HandleMessage counts one message; go-nsq sends its FIN when nil is returned.
func (c *counter) HandleMessage(*nsq.Message) error {
	switch seen := atomic.AddInt64(&c.seen, 1); {
	case seen == 1:
		c.startWall, c.startCPU = time.Now(), cpuTime()
		if c.want == 1 {
			c.finish()
		}
	case seen == c.want:
		c.finish()
	}
	return nil
}

func (c *counter) finish() {
	c.result = report{
		Messages:   c.want,
		Seconds:    time.Since(c.startWall).Seconds(),
		CPUSeconds: (cpuTime() - c.startCPU).Seconds(),
	}
	close(c.done)
}

// cpuTime is the user and system time that this process has used so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func main() {
	address := flag.String("nsqd-tcp-address", "127.0.0.1:4150", "nsqd to consume from")
	topic := flag.String("topic", "", "topic (required)")
	channel := flag.String("channel", "", "channel (required)")
	maxInFlight := flag.Int("max-in-flight", 2500, "messages in flight at most")
	count := flag.Int64("count", 0, "messages to consume before the end (required)")
	flag.Parse()
	if *topic == "" || *channel == "" || *count < 1 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}

	config := nsq.NewConfig()
	config.MaxInFlight = *maxInFlight
	// The gateway asks for the same; at nsqd's default of 250 ms a small window would wait for it.
	config.OutputBufferTimeout = 25 * time.Millisecond
	consumer, err := nsq.NewConsumer(*topic, *channel, config)
	if err != nil {
		log.Fatal(err)
	}
	consumer.SetLoggerLevel(nsq.LogLevelError)
	handler := &counter{want: *count, done: make(chan struct{})}
	// One handler: messages are counted in one goroutine, so the first is really the first.
	consumer.AddHandler(handler)
	if err := consumer.ConnectToNSQD(*address); err != nil {
		log.Fatal(err)
	}
	<-handler.done
	consumer.Stop()
	<-consumer.StopChan
	if err := json.NewEncoder(os.Stdout).Encode(handler.result); err != nil {
		log.Fatal(err)
	}
}
