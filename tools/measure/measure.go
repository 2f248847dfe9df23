// Package measure is what the programs on go-nsq have in common: how they connect, and the one line
// of JSON that says what a run took.
package measure

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"log"
	"os"
	"syscall"
	"time"

	"github.com/nsqio/go-nsq"
)

// Flags are the flags that every program has.
type Flags struct {
	Address, Topic *string
	Count          *int64
	rootCAFile     *string
	snappy         *bool
}

// AddFlags adds them to the command line.
func AddFlags() Flags {
	return Flags{
		Address:    flag.String("nsqd-tcp-address", "127.0.0.1:4150", "nsqd to connect to"),
		Topic:      flag.String("topic", "", "topic (required)"),
		Count:      flag.Int64("count", 0, "messages until the end (required)"),
		rootCAFile: flag.String("tls-root-ca-file", "", "use TLS, and trust this authority (PEM)"),
		snappy:     flag.Bool("snappy", false, "use snappy"),
	}
}

// Config is go-nsq's, with what the flags say of the connection.
func (f Flags) Config() *nsq.Config {
	config := Config(*f.rootCAFile)
	config.Snappy = *f.snappy
	return config
}

// Config is go-nsq's, with TLS if there is a file with an authority to trust.
func Config(rootCAFile string) *nsq.Config {
	config := nsq.NewConfig()
	if rootCAFile != "" {
		pem, err := os.ReadFile(rootCAFile)
		if err != nil {
			log.Fatal(err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			log.Fatalf("%s holds no certificate", rootCAFile)
		}
		config.TlsV1 = true
		config.TlsConfig = &tls.Config{RootCAs: roots}
	}
	return config
}

// Meter measures from the moment when it is started.
type Meter struct {
	startWall time.Time
	startCPU  time.Duration
}

// Start starts a meter.
func Start() Meter {
	return Meter{time.Now(), cpuTime()}
}

// Report is the line that is printed at the end.
type Report struct {
	Messages int64 `json:"messages"`
	// Seconds is the wall clock since the meter was started.
	Seconds float64 `json:"seconds"`
	// CPUSeconds is the user and system time of this process over the same span.
	CPUSeconds float64 `json:"cpu_seconds"`
}

// Stop returns what was spent on so many messages since Start.
func (m Meter) Stop(messages int64) Report {
	return Report{
		Messages:   messages,
		Seconds:    time.Since(m.startWall).Seconds(),
		CPUSeconds: (cpuTime() - m.startCPU).Seconds(),
	}
}

// Print writes the report to the standard output.
func (r Report) Print() {
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		log.Fatal(err)
	}
}

// cpuTime is the user and system time that this process has used so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
