// Consumes a topic over HTTP: go run consumer.go. Needs no package but Go's own.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"
)

type message struct {
	ID, Lease, Task string
	Attempt         int
	TTR             float64
	Kwargs          map[string]any
}

// call posts a document. 409: the lease has ended, and another consumer has the message or has done it.
func call(path string, body, into any) error {
	raw, _ := json.Marshal(body)
	request, _ := http.NewRequest("POST", os.Getenv("DELAYQ_URL")+path, bytes.NewReader(raw))
	request.Header.Set("Authorization", "Bearer "+os.Getenv("DELAYQ_TOKEN"))
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 400 && answer.StatusCode != 409 {
		return fmt.Errorf("%s: %s", path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// work does what the message is for. It may run twice, when its consumer dies before the ack.
func work(m message) error {
	journal, err := os.OpenFile(os.Getenv("JOURNAL"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer journal.Close()
	_, err = fmt.Fprintf(journal, "%s go:%d %d %d\n", m.ID, os.Getpid(), m.Attempt, time.Now().UnixMilli())
	return err
}

func main() {
	for {
		var taken struct{ Messages []message }
		order := map[string]any{"topics": []string{os.Getenv("TOPIC")}, "count": 20, "wait": 10}
		if err := call("/consume", order, &taken); err != nil {
			log.Print(err) // the server is away, or starts anew
			time.Sleep(500 * time.Millisecond)
		}
		for _, m := range taken.Messages {
			lease, settled := map[string]any{"lease": m.Lease}, map[string]any{}
			if err := work(m); err != nil {
				lease["error"] = err.Error()
				call("/leases/nack", lease, &settled)
			} else if err := call("/leases/ack", lease, &settled); err != nil {
				log.Print(err)
			}
		}
	}
}
