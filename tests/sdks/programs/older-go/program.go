// An application with an older posthog-go, which sends marked events.
//
//	program --host http://127.0.0.1:8320 --key phc_… --name go-1.2 --count 100 --parts 3
//
// It sends a part of its events, says so by a line, and waits for one before the next part.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/posthog/posthog-go"
)

func main() {
	host, key := flag.String("host", "", "where forwarder listens"), flag.String("key", "", "the project's key")
	name := flag.String("name", "", "what marks its events")
	count, parts := flag.Int("count", 100, "events a part"), flag.Int("parts", 1, "parts")
	flag.Parse()

	client, err := posthog.NewWithConfig(*key, posthog.Config{Endpoint: *host, Interval: 200 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	input := bufio.NewScanner(os.Stdin)
	for part := 1; part <= *parts; part++ {
		if part > 1 {
			input.Scan()
		}
		for n := 0; n < *count; n++ {
			properties := posthog.NewProperties().
				Set("mark", fmt.Sprintf("%s:%d:%d:", *name, part, n)).
				Set("at", time.Now().UTC().Format(time.RFC3339Nano)).
				Set("text", "Zoë 茶碗 😀")
			if err := client.Enqueue(posthog.Capture{DistinctId: "user-" + *name, Event: "page read", Properties: properties}); err != nil {
				panic(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		fmt.Printf("{\"part\": %d}\n", part)
	}
	input.Scan()
	client.Close()
}
