package work

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	month = 30 * 24 * time.Hour
	// ahead is the time between a task's submission and its due instant in `late`.
	ahead = 10 * time.Second
	// tick is how often `late` submits what became near.
	tick = 50 * time.Millisecond
	// submitters share the submission of many tasks.
	submitters = 4
	// backlog bounds `throughput`: submitters wait for the workers beyond it.
	backlog = 10_000
	// slowest is the rate of submission, in tasks a second, that `burst` allows for.
	slowest = 4_000
)

// A Peer is a scheduler that takes and runs tasks.
type Peer interface {
	// Submit stores tasks in the fastest way that the peer's documentation offers.
	Submit(tasks []Task) error
	// SubmitOne stores one task.
	SubmitOne(task Task) error
	// Start starts workers, which record what they run.
	Start(arrivals *Arrivals) error
	// Stop returns when no worker runs.
	Stop()
}

// Run does the work that the order names.
func (o *Order) Run(peer Peer) Answer {
	if o.Work == "submit" {
		return o.submit(peer)
	}
	arrivals := openArrivals(o.Arrivals)
	var answer Answer
	switch o.Work {
	case "late":
		answer = o.late(peer, arrivals)
	case "burst":
		answer = o.burst(peer, arrivals)
	case "throughput":
		answer = o.throughput(peer, arrivals)
	default:
		Check(fmt.Errorf("no such work: %q", o.Work))
	}
	peer.Stop()
	arrivals.close()
	return answer
}

func (o *Order) late(peer Peer, arrivals *Arrivals) Answer {
	o.fill(peer, firstPending, o.Pending, time.Now().Add(month))
	Check(peer.Start(arrivals))
	total := int(float64(o.Rate) * o.Seconds)
	start := time.Now()
	due := func(number int) time.Time {
		return start.Add(ahead + time.Duration(float64(number)/float64(o.Rate)*float64(time.Second)))
	}
	for next := 0; next < total; {
		var near []Task
		for ; next < total && !due(next).After(time.Now().Add(ahead)); next++ {
			near = append(near, o.task(int64(next), due(next)))
		}
		if len(near) > 0 {
			Check(peer.Submit(near))
		}
		time.Sleep(tick)
	}
	spent := time.Since(start).Seconds()
	arrivals.await(total, due(total).Add(30*time.Second))
	return Answer{Submitted: total, SubmitSeconds: spent}
}

func (o *Order) burst(peer Peer, arrivals *Arrivals) Answer {
	Check(peer.Start(arrivals))
	start := time.Now()
	// A whole second, for the peers that keep no fractions.
	due := start.Add(ahead + time.Duration(o.Tasks)*time.Second/slowest).Truncate(time.Second)
	o.fill(peer, 0, o.Tasks, due)
	spent := time.Since(start).Seconds()
	if time.Until(due) < 3*time.Second {
		Check(fmt.Errorf("the submission of %d tasks took %.1f s, until after they were due", o.Tasks, spent))
	}
	arrivals.await(o.Tasks, due.Add(120*time.Second))
	return Answer{Submitted: o.Tasks, SubmitSeconds: spent}
}

// fill submits tasks with consecutive numbers that are due at one instant.
func (o *Order) fill(peer Peer, first int64, count int, due time.Time) {
	var next atomic.Int64
	concurrently(submitters, func() {
		for {
			from := next.Add(int64(o.Batch)) - int64(o.Batch)
			if from >= int64(count) {
				return
			}
			var tasks []Task
			for number := from; number < min(from+int64(o.Batch), int64(count)); number++ {
				tasks = append(tasks, o.task(first+number, due))
			}
			Check(peer.Submit(tasks))
		}
	})
	fmt.Fprintf(os.Stderr, "%d tasks submitted\n", count)
}

func (o *Order) throughput(peer Peer, arrivals *Arrivals) Answer {
	Check(peer.Start(arrivals))
	var submitted atomic.Int64
	start := time.Now()
	end := start.Add(time.Duration(o.Seconds * float64(time.Second)))
	concurrently(submitters, func() {
		for time.Now().Before(end) {
			if int(submitted.Load())-arrivals.Count() > backlog {
				time.Sleep(time.Millisecond)
				continue
			}
			from := submitted.Add(int64(o.Batch)) - int64(o.Batch)
			var tasks []Task
			for number := from; number < from+int64(o.Batch); number++ {
				tasks = append(tasks, o.task(number, time.Now()))
			}
			Check(peer.Submit(tasks))
		}
	})
	spent := time.Since(start).Seconds()
	arrivals.await(int(submitted.Load()), time.Now().Add(120*time.Second))
	return Answer{Submitted: int(submitted.Load()), SubmitSeconds: spent}
}

func (o *Order) submit(peer Peer) Answer {
	var submitted atomic.Int64
	start := time.Now()
	end := start.Add(time.Duration(o.Seconds * float64(time.Second)))
	concurrently(o.Connections, func() {
		for time.Now().Before(end) {
			Check(peer.SubmitOne(o.task(submitted.Add(1), time.Now().Add(time.Hour))))
		}
	})
	return Answer{Submitted: int(submitted.Load()), SubmitSeconds: time.Since(start).Seconds()}
}

func concurrently(count int, do func()) {
	var group sync.WaitGroup
	for range count {
		group.Go(do)
	}
	group.Wait()
}
