// An application with posthog-go that decides its visitors' flags: from the definitions, and by asking.
//
//	program flags --host http://127.0.0.1:8320 --key phc_… --secret-key phx_… --asked 20 < visitors.jsonl
//
// Each line of input is a visitor: distinct_id, person_properties, groups, group_properties. For each a line is written: what the
// definitions give (`flags`, `payloads`; what the SDK can't decide by itself is absent), and for the first `--asked` what the service says
// (`answered`).
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/posthog/posthog-go"
)

type visitor struct {
	DistinctID       string                        `json:"distinct_id"`
	PersonProperties posthog.Properties            `json:"person_properties"`
	Groups           posthog.Groups                `json:"groups"`
	GroupProperties  map[string]posthog.Properties `json:"group_properties"`
}

func (v visitor) of(key string) posthog.FeatureFlagPayload {
	return posthog.FeatureFlagPayload{
		Key: key, DistinctId: v.DistinctID, Groups: v.Groups, PersonProperties: v.PersonProperties,
		GroupProperties: v.GroupProperties, OnlyEvaluateLocally: true,
	}
}

func (v visitor) all(locally bool) posthog.FeatureFlagPayloadNoKey {
	return posthog.FeatureFlagPayloadNoKey{
		DistinctId: v.DistinctID, Groups: v.Groups, PersonProperties: v.PersonProperties,
		GroupProperties: v.GroupProperties, OnlyEvaluateLocally: locally,
	}
}

// silent keeps to itself which flags the SDK can't decide.
type silent struct{}

func (silent) Debugf(string, ...interface{}) {}
func (silent) Logf(string, ...interface{})   {}
func (silent) Warnf(string, ...interface{})  {}
func (silent) Errorf(string, ...interface{}) {}

func decideFlags(arguments []string) {
	set := flag.NewFlagSet("flags", flag.ExitOnError)
	host, key := set.String("host", "", "where forwarder listens"), set.String("key", "", "the project's key")
	secret, asked := set.String("secret-key", "", "a personal key"), set.Int("asked", 0, "visitors of whom the service is asked")
	_ = set.Parse(arguments)

	deciding, err := posthog.NewWithConfig(*key, posthog.Config{Endpoint: *host, PersonalApiKey: *secret, Logger: silent{}})
	if err != nil {
		panic(err)
	}
	asking, err := posthog.NewWithConfig(*key, posthog.Config{Endpoint: *host})
	if err != nil {
		panic(err)
	}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	output := json.NewEncoder(os.Stdout)
	for number := 0; input.Scan(); number++ {
		var known visitor
		if err := json.Unmarshal(input.Bytes(), &known); err != nil {
			panic(err)
		}
		flags, err := deciding.GetAllFlags(known.all(true))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		payloads := map[string]string{}
		for key, value := range flags {
			if payload, err := deciding.GetFeatureFlagPayload(known.of(key)); err == nil && value != false {
				payloads[key] = payload
			}
		}
		said := map[string]any{"distinct_id": known.DistinctID, "flags": flags, "payloads": payloads}
		if number < *asked {
			answered, err := asking.GetAllFlags(known.all(false))
			if err != nil {
				panic(err)
			}
			said["answered"] = map[string]any{"flags": answered}
		}
		_ = output.Encode(said)
	}
	_ = deciding.Close()
	_ = asking.Close()
}
