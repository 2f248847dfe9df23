// Command steady publishes over HTTP at a constant rate and prints, as one line of JSON, how long
// the answers took.
//
// A request has its moment by the clock, whether or not the answers before it have come, and its
// time counts from that moment: what it waited for a free connection belongs to it. A load that
// waits for slow answers before it asks again leaves out just those that count (coordinated
// omission).
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/valyala/fasthttp"
)

// Histograms keep microseconds, up to a minute, with three digits.
const (
	lowest  = 1
	highest = 60_000_000
	digits  = 3
)

// report is what is printed; times are in milliseconds.
type report struct {
	Count      int64   `json:"count"`
	Failed     int64   `json:"failed"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
	P50        float64 `json:"p50_ms"`
	P90        float64 `json:"p90_ms"`
	P99        float64 `json:"p99_ms"`
	P999       float64 `json:"p999_ms"`
	Max        float64 `json:"max_ms"`
	SentLate   float64 `json:"p99_sent_late_ms"`
}

// plan is what is asked for.
type plan struct {
	url         string
	body        []byte
	rate        float64
	connections int
	warmUp      time.Duration
	length      time.Duration
}

// tally is what one connection saw.
type tally struct {
	took   *hdrhistogram.Histogram
	late   *hdrhistogram.Histogram
	failed int64
}

func newTally() tally {
	return tally{
		hdrhistogram.New(lowest, highest, digits), hdrhistogram.New(lowest, highest, digits), 0,
	}
}

// pace hands out the moment of each request, as the time since start, when it has come.
//
// Timers of the runtime are a millisecond late where nothing else happens, which is as long as an
// answer takes; the system's are exact to some ten microseconds.
func (p plan) pace(start time.Time, moments chan<- time.Duration) {
	runtime.LockOSThread()
	defer close(moments)
	for i := 0; ; i++ {
		moment := time.Duration(float64(i) / p.rate * float64(time.Second))
		if moment >= p.warmUp+p.length {
			return
		}
		if left := moment - time.Since(start); left > 0 {
			pause := syscall.NsecToTimespec(left.Nanoseconds())
			_ = syscall.Nanosleep(&pause, nil)
		}
		moments <- moment
	}
}

// ask sends a request for each moment, one after the other.
func (p plan) ask(client *fasthttp.HostClient, start time.Time, moments <-chan time.Duration) tally {
	seen := newTally()
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	request.Header.SetMethod(fasthttp.MethodPost)
	request.SetRequestURI(p.url)
	request.SetBodyRaw(p.body)
	for moment := range moments {
		sent := time.Since(start)
		err := client.Do(request, response)
		took := time.Since(start) - moment
		if moment < p.warmUp {
			continue
		}
		if err != nil || response.StatusCode() != fasthttp.StatusOK {
			seen.failed++
			continue
		}
		// What is longer than the histogram counts as its longest.
		_ = seen.took.RecordValue(min(max(took.Microseconds(), lowest), highest))
		_ = seen.late.RecordValue(min(max((sent-moment).Microseconds(), lowest), highest))
	}
	return seen
}

func (p plan) run() report {
	address, _, _ := strings.Cut(strings.TrimPrefix(p.url, "http://"), "/")
	client := &fasthttp.HostClient{Addr: address, MaxConns: p.connections}
	moments := make(chan time.Duration, int(p.rate*(p.warmUp+p.length).Seconds())+1)
	start := time.Now()
	var group sync.WaitGroup
	tallies := make([]tally, p.connections)
	for i := range tallies {
		group.Add(1)
		go func() {
			defer group.Done()
			tallies[i] = p.ask(client, start, moments)
		}()
	}
	go p.pace(start, moments)
	group.Wait()
	seconds := (time.Since(start) - p.warmUp).Seconds()

	all := newTally()
	for _, each := range tallies {
		all.took.Merge(each.took)
		all.late.Merge(each.late)
		all.failed += each.failed
	}
	ms := func(histogram *hdrhistogram.Histogram, quantile float64) float64 {
		return float64(histogram.ValueAtQuantile(quantile)) / 1_000
	}
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return report{
		Count:      all.took.TotalCount(),
		Failed:     all.failed,
		Seconds:    seconds,
		CPUSeconds: time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds(),
		P50:        ms(all.took, 50),
		P90:        ms(all.took, 90),
		P99:        ms(all.took, 99),
		P999:       ms(all.took, 99.9),
		Max:        float64(all.took.Max()) / 1_000,
		SentLate:   ms(all.late, 99),
	}
}

func main() {
	url := flag.String("url", "", "what is asked with POST, http:// and so on")
	rate := flag.Float64("rate", 1_000, "requests a second")
	connections := flag.Int("connections", 64, "kept alive, each with one request at a time")
	bodyBytes := flag.Int("body-bytes", 200, "size of the body of a request")
	warmUp := flag.Duration("warm-up", time.Second, "how long answers do not count")
	length := flag.Duration("length", 10*time.Second, "how long they do")
	flag.Parse()
	if !strings.HasPrefix(*url, "http://") || *rate <= 0 || *connections < 1 || *bodyBytes < 1 ||
		*length <= 0 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	body := []byte(strings.Repeat("x", *bodyBytes))
	measured := plan{*url, body, *rate, *connections, *warmUp, *length}.run()
	if err := json.NewEncoder(os.Stdout).Encode(measured); err != nil {
		log.Fatal(err)
	}
}
