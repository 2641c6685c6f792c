// An application with posthog-go: everything that it can send, and then page after page being read.
//
//	program --host http://127.0.0.1:8320 --key phc_… --count 1000 --journal sent.jsonl [--mode historical]
//
// Each event that was answered 200 is a line of the journal: its name, its distinct_id, and its number `n` where it has one; this SDK
// gives events no uuid. With --parts 3 it stops after a third and after two thirds, says so on its output, and goes on when it is told to
// by a line of input. `program flags …` decides flags instead: flags.go.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/posthog/posthog-go"
)

const flagKey = "new-checkout"

// journal is what the SDK tells about each message: Success when it was answered 200, Failure when it was given up.
type journal struct {
	mutex   sync.Mutex
	file    *bufio.Writer
	settled int
	failed  int
}

// line is a message as it went over the wire, as far as it tells one event from another.
type line struct {
	UUID       string `json:"uuid,omitempty"`
	Event      string `json:"event"`
	DistinctID string `json:"distinct_id"`
	N          *int   `json:"n,omitempty"`
}

func (j *journal) Success(message posthog.APIMessage) {
	var sent struct {
		line
		Properties struct {
			DistinctID string `json:"distinct_id"`
			N          *int   `json:"n"`
		} `json:"properties"`
	}
	raw, _ := json.Marshal(message)
	_ = json.Unmarshal(raw, &sent)
	if sent.DistinctID == "" { // an alias has it among its properties only
		sent.DistinctID = sent.Properties.DistinctID
	}
	sent.N = sent.Properties.N
	written, _ := json.Marshal(sent.line)
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.settled++
	fmt.Fprintf(j.file, "%s\n", written)
}

func (j *journal) Failure(_ posthog.APIMessage, err error) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.settled++
	j.failed++
	fmt.Fprintf(os.Stderr, "given up: 1 events: %v\n", err)
}

func (j *journal) done() int {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return j.settled
}

// shop is the application: a client, and how many events it was given.
type shop struct {
	client posthog.Client
	count  int
}

func (s *shop) send(message posthog.Message) {
	if err := s.client.Enqueue(message); err != nil {
		fmt.Fprintf(os.Stderr, "not taken: %v\n", err)
		os.Exit(1)
	}
	s.count++
}

func (s *shop) capture(event string, properties posthog.Properties) {
	s.send(posthog.Capture{DistinctId: "ann", Event: event, Properties: properties})
}

// People: what is known of them, and that two of them are one.
func (s *shop) tellPeople() {
	s.send(posthog.Identify{DistinctId: "ann", Properties: posthog.NewProperties().Set("plan", "pro").Set("email", "ann@example.com")})
	s.capture("$set", posthog.NewProperties().Set("$set_once", posthog.NewProperties().Set("first_seen", "2026-01-01")))
	s.capture("$set", posthog.NewProperties().Set("$set_once", posthog.NewProperties().Set("first_seen", "2026-02-02")))
	s.send(posthog.Identify{DistinctId: "ann", Properties: posthog.NewProperties().Set("name", "Ann Müller 茶")})
	s.send(posthog.Capture{DistinctId: "anon-7", Event: "cart opened"})
	s.send(posthog.Alias{DistinctId: "anon-7", Alias: "bea"})
}

// A company that is described, and one that is only mentioned.
func (s *shop) tellGroups() {
	acme := posthog.NewProperties().Set("name", "Acme").Set("seats", 5).Set("since", "2026-01-01T00:00:00Z")
	s.send(posthog.GroupIdentify{Type: "company", Key: "acme", DistinctId: "ann", Properties: acme})
	for event, key := range map[string]string{"invoice paid": "acme", "invoice lost": "ghost"} {
		s.send(posthog.Capture{DistinctId: "ann", Event: event, Groups: posthog.NewGroups().Set("company", key)})
	}
}

// Pages, screens, surveys, flags by name, and somebody who stays unknown.
func (s *shop) tellViews() {
	s.capture("$pageview", posthog.NewProperties().Set("$current_url", "https://shop.example.com/tea?q=1#top"))
	s.capture("$screen", posthog.NewProperties().Set("$screen_name", "Checkout"))
	for _, event := range []string{"survey shown", "survey dismissed"} {
		s.capture(event, posthog.NewProperties().Set("$survey_id", "s-1"))
	}
	s.capture("survey sent", posthog.NewProperties().Set("$survey_id", "s-1").Set("$survey_response", "tea"))
	s.capture("$feature_flag_called", posthog.NewProperties().Set("$feature_flag", "old-banner").Set("$feature_flag_response", "red"))
	s.capture("banner seen", posthog.NewProperties().Set("$feature/old-banner", "red"))
	glimpsed := posthog.NewProperties().Set("$process_person_profile", false)
	s.send(posthog.Capture{DistinctId: "passer-by", Event: "page glimpsed", Properties: glimpsed})
}

// An event with its own time and uuid.
func (s *shop) tellMore() {
	s.send(posthog.Capture{
		DistinctId: "ann", Event: "order imported", Uuid: "018f0000-0000-7000-8000-000000000001",
		Timestamp: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC),
	})
}

// Events up to so many in all.
func (s *shop) readPages(until int) {
	for s.count < until {
		properties := posthog.NewProperties().Set("n", s.count).Set("text", "Zoë 茶碗 \u2028").Set("big", int64(1)<<60)
		s.send(posthog.Capture{DistinctId: fmt.Sprintf("reader-%d", s.count%50), Event: "page read", Properties: properties})
	}
}

// What the flag is, from the service, or from the definitions where there is a personal key, and how long that took. The SDK sends an
// event of its own for it.
func (s *shop) askFlag(part int) map[string]any {
	began := time.Now()
	enabled, err := s.client.IsFeatureEnabled(posthog.FeatureFlagPayload{Key: flagKey, DistinctId: fmt.Sprintf("asker-%d", part)})
	s.count++
	answer := map[string]any{"part": part, "seconds": time.Since(began).Seconds(), "enabled": enabled}
	if err != nil {
		answer["error"] = err.Error()
	}
	return answer
}

func (s *shop) definitions() []string {
	keys := []string{}
	_ = s.client.ReloadFeatureFlags()
	flags, _ := s.client.GetFeatureFlags()
	for _, each := range flags {
		keys = append(keys, each.Key)
	}
	return keys
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "flags" {
		decideFlags(os.Args[2:])
		return
	}
	host, key := flag.String("host", "", "where forwarder listens"), flag.String("key", "", "the project's key")
	count, parts := flag.Int("count", 1000, "events"), flag.Int("parts", 1, "pauses between, plus one")
	path, mode := flag.String("journal", "", "file to write"), flag.String("mode", "batches", "batches or historical")
	secret := flag.String("secret-key", "", "a personal key: flags are decided here, by their definitions")
	flag.Parse()

	file, err := os.Create(*path)
	if err != nil {
		panic(err)
	}
	told := &journal{file: bufio.NewWriter(file)}
	client, err := posthog.NewWithConfig(*key, posthog.Config{
		Endpoint: *host, Callback: told, HistoricalMigration: *mode == "historical",
		PersonalApiKey: *secret, Interval: 100 * time.Millisecond,
	})
	if err != nil {
		panic(err)
	}
	input := bufio.NewScanner(os.Stdin)
	visit := &shop{client: client}
	for part := 1; part <= *parts; part++ {
		if part == 1 {
			visit.tellPeople()
			visit.tellGroups()
			visit.tellViews()
			visit.tellMore()
		}
		answer := visit.askFlag(part)
		if *secret != "" {
			answer["definitions"] = visit.definitions()
		}
		visit.readPages(*count * part / *parts)
		for told.done() < visit.count { // Close would give up what is being retried
			time.Sleep(5 * time.Millisecond)
		}
		said, _ := json.Marshal(answer)
		fmt.Println(string(said))
		if part < *parts {
			input.Scan()
		}
	}
	client.Close()
	told.file.Flush()
	file.Close()
	if told.failed > 0 {
		os.Exit(1)
	}
}
