// Command socket-client is a WebSocket client on gorilla/websocket that does what it is told.
//
// Its one argument is a JSON object: url, headers, subprotocols, and fragment_bytes, the longest
// frame that it writes (0: whole messages). It reads one JSON command from each line of its input,
// and writes one JSON event for each thing that happens to it. The Node clients speak the same.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const patience = 10 * time.Second

type wish struct {
	URL           string            `json:"url"`
	Headers       map[string]string `json:"headers"`
	Subprotocols  []string          `json:"subprotocols"`
	FragmentBytes int               `json:"fragment_bytes"`
}

type command struct {
	Do   string `json:"do"` // text, binary, ping, close or abort
	Data string `json:"data"`
	Code int    `json:"code"`
}

type event struct {
	Event       string `json:"event"` // open, refused, text, binary, ping, pong or close
	Data        string `json:"data"`
	Subprotocol string `json:"subprotocol"`
	Status      int    `json:"status"`
	Code        int    `json:"code"`
	Reason      string `json:"reason"`
}

var (
	writing sync.Mutex
	output  = json.NewEncoder(os.Stdout)
)

// say writes one event; an output that nobody reads ends the program.
func say(what event) {
	writing.Lock()
	defer writing.Unlock()
	if output.Encode(what) != nil {
		os.Exit(1)
	}
}

func main() {
	var wanted wish
	if len(os.Args) != 2 || json.Unmarshal([]byte(os.Args[1]), &wanted) != nil {
		log.Fatal(`usage: socket-client '{"url":"ws://…"}'`)
	}
	headers := http.Header{}
	for name, value := range wanted.Headers {
		headers.Set(name, value)
	}
	dialer := websocket.Dialer{
		HandshakeTimeout: patience,
		Subprotocols:     wanted.Subprotocols,
		// A message is written in frames of this size, wherever a character ends.
		WriteBufferSize: wanted.FragmentBytes,
	}
	socket, answer, err := dialer.Dial(wanted.URL, headers)
	if err != nil {
		refused := event{Event: "refused"}
		if answer != nil {
			body, _ := io.ReadAll(answer.Body)
			refused.Status, refused.Data = answer.StatusCode, string(body)
		}
		say(refused)
		return
	}
	say(event{Event: "open", Subprotocol: socket.Subprotocol()})
	go obey(socket)
	hear(socket)
}

// hear says what comes until the socket is closed; the library answers pings and closes.
func hear(socket *websocket.Conn) {
	pong := socket.PingHandler()
	socket.SetPingHandler(func(data string) error {
		say(event{Event: "ping"})
		return pong(data)
	})
	socket.SetPongHandler(func(data string) error {
		say(event{Event: "pong", Data: data})
		return nil
	})
	for {
		kind, data, err := socket.ReadMessage()
		if err != nil {
			closed := event{Event: "close", Code: websocket.CloseAbnormalClosure}
			var told *websocket.CloseError
			if errors.As(err, &told) {
				closed.Code, closed.Reason = told.Code, told.Text
			}
			say(closed)
			return
		}
		name := "text"
		if kind == websocket.BinaryMessage {
			name = "binary"
		}
		say(event{Event: name, Data: string(data)})
	}
}

// obey carries out one command after the other; what fails shows as a close.
func obey(socket *websocket.Conn) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var told command
		if err := json.Unmarshal(lines.Bytes(), &told); err != nil {
			log.Fatal(err)
		}
		switch told.Do {
		case "text":
			_ = socket.WriteMessage(websocket.TextMessage, []byte(told.Data))
		case "binary":
			_ = socket.WriteMessage(websocket.BinaryMessage, []byte(told.Data))
		case "ping":
			_ = socket.WriteControl(
				websocket.PingMessage, []byte(told.Data), time.Now().Add(patience))
		case "close":
			_ = socket.WriteControl(
				websocket.CloseMessage,
				websocket.FormatCloseMessage(told.Code, ""),
				time.Now().Add(patience))
		case "abort":
			_ = socket.Close()
		default:
			log.Fatalf("do %q? text, binary, ping, close and abort are known", told.Do)
		}
	}
	_ = socket.Close()
}
