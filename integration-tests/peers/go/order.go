// Package work runs the works of the peers' protocol over any scheduler that can be used from Go.
package work

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// An Order is the line that the driver writes.
type Order struct {
	Work         string  `json:"work"`
	PostgresURL  string  `json:"postgres_url"`
	RedisURL     string  `json:"redis_url"`
	Seconds      float64 `json:"seconds"`
	Rate         int     `json:"rate"`
	Pending      int     `json:"pending"`
	Tasks        int     `json:"tasks"`
	Connections  int     `json:"connections"`
	Batch        int     `json:"batch"`
	PayloadBytes int     `json:"payload_bytes"`
	Arrivals     string  `json:"arrivals"`
}

// An Answer is the line that the driver reads.
type Answer struct {
	Settings      string  `json:"settings"`
	Version       string  `json:"version"`
	Submitted     int     `json:"submitted"`
	SubmitSeconds float64 `json:"submit_seconds"`
	Unfair        string  `json:"unfair"`
}

// A Task is what a worker finds in a payload.
type Task struct {
	Number int64  `json:"number"`
	DueUS  int64  `json:"due_us"`
	Pad    string `json:"pad"`
}

// Due is the instant before which no worker may run the task.
func (t Task) Due() time.Time { return time.UnixMicro(t.DueUS) }

// task makes one whose JSON has the length that the order asks for.
func (o *Order) task(number int64, due time.Time) Task {
	task := Task{Number: number, DueUS: due.UnixMicro()}
	bare, err := json.Marshal(task)
	Check(err)
	task.Pad = strings.Repeat("x", max(0, o.PayloadBytes-len(bare)))
	return task
}

// Read takes the order from stdin.
func Read() *Order {
	order := &Order{}
	Check(json.NewDecoder(os.Stdin).Decode(order))
	return order
}

// Print answers the driver. The version is the one that the program was built with.
func (a Answer) Print(module string) {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range build.Deps {
			if dependency.Path == module {
				a.Version = fmt.Sprintf("%s %s, %s", module, dependency.Version, build.GoVersion)
			}
		}
	}
	Check(json.NewEncoder(os.Stdout).Encode(a))
}

// Check ends the program on an error; a run with errors has no figures.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
