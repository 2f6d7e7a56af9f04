// Consumes a topic over HTTP: go run consumer.go. Needs no package but Go's own.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

type document map[string]any

// call posts a document. 409 is no error: another consumer has the message, or has done it.
func call(path string, body document, into any) error {
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

// work does what a message is for, within its ttr. It may run twice: its consumer may die before the ack.
func work(m document) {
	journal, _ := os.OpenFile(os.Getenv("JOURNAL"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	defer journal.Close()
	fmt.Fprintf(journal, "%s go:%d %v %d\n", m["id"], os.Getpid(), m["attempt"], time.Now().UnixMilli())
}

func main() {
	order := document{"topics": []string{os.Getenv("TOPIC")}, "count": 20, "wait": 10}
	for {
		var taken struct{ Messages []document }
		if err := call("/consume", order, &taken); err != nil {
			fmt.Fprintln(os.Stderr, err) // the server is away, or starts anew
			time.Sleep(500 * time.Millisecond)
		}
		for _, m := range taken.Messages {
			work(m)
			call("/leases/ack", document{"lease": m["lease"]}, &document{})
		}
	}
}
