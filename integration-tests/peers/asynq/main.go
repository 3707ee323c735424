// Command asynq runs the works of the peers' protocol on asynq, a task queue on Redis.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	work "duetime/peers/go"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const (
	kind = "arrival"
	// enqueuers share a batch: the library has no call for many tasks, and its client is safe for concurrent use.
	enqueuers = 16
	// The documentation sizes concurrency by what handlers wait for; no-op handlers wait only for Redis.
	concurrency = 100
	// A server takes tasks one after the other, so the documentation runs several.
	servers = 2
	// Both checks default to seconds (1 and 5). Precision needs less; the documentation warns of load on Redis below that.
	taskCheck    = 20 * time.Millisecond
	delayedCheck = 100 * time.Millisecond
)

type peer struct {
	redis   asynq.RedisClientOpt
	client  *asynq.Client
	servers []*asynq.Server
}

func newPeer(url string, connections int) *peer {
	option, err := asynq.ParseRedisURI(url)
	work.Check(err)
	redisOption := option.(asynq.RedisClientOpt)
	redisOption.PoolSize = connections
	return &peer{redis: redisOption, client: asynq.NewClient(redisOption)}
}

func (p *peer) SubmitOne(task work.Task) error {
	payload, err := json.Marshal(task)
	if err != nil {
		return err
	}
	// asynq keeps whole seconds and drops the rest. Rounded up, no task is early.
	due := task.Due().Add(time.Second - time.Microsecond).Truncate(time.Second)
	if time.Until(task.Due()) <= 0 {
		due = task.Due()
	}
	_, err = p.client.Enqueue(asynq.NewTask(kind, payload), asynq.ProcessAt(due))
	return err
}

func (p *peer) Submit(tasks []work.Task) error {
	queue := make(chan work.Task)
	failures := make(chan error, enqueuers)
	var group sync.WaitGroup
	for range enqueuers {
		group.Go(func() {
			for task := range queue {
				if err := p.SubmitOne(task); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	for _, task := range tasks {
		select {
		case queue <- task:
		case err := <-failures:
			return err
		}
	}
	close(queue)
	group.Wait()
	close(failures)
	return <-failures
}

func (p *peer) Start(arrivals *work.Arrivals) error {
	handler := asynq.HandlerFunc(func(_ context.Context, received *asynq.Task) error {
		got := time.Now()
		var task work.Task
		if err := json.Unmarshal(received.Payload(), &task); err != nil {
			return err
		}
		arrivals.Record(task, got)
		return nil
	})
	for range servers {
		server := asynq.NewServer(p.redis, asynq.Config{
			Concurrency:              concurrency,
			TaskCheckInterval:        taskCheck,
			DelayedTaskCheckInterval: delayedCheck,
			LogLevel:                 asynq.WarnLevel,
		})
		if err := server.Start(handler); err != nil {
			return err
		}
		p.servers = append(p.servers, server)
	}
	return nil
}

func (p *peer) Stop() {
	for _, server := range p.servers {
		server.Shutdown()
	}
}

func main() {
	order := work.Read()
	redis.SetLogger(silence{})
	peer := newPeer(order.RedisURL, max(order.Connections, 4*enqueuers))
	answer := order.Run(peer)
	answer.Settings = fmt.Sprintf("%d servers in one process, concurrency %d each, TaskCheckInterval %v, DelayedTaskCheckInterval %v, "+
		"one Enqueue a task from up to %d goroutines (no batch call), Redis pool %d",
		servers, concurrency, taskCheck, delayedCheck, max(order.Connections, 4*enqueuers), peer.redis.PoolSize)
	answer.Unfair = "to it: its due instants are whole seconds; they are rounded up, so that no task is early, which costs 0.5 s on average. " +
		"To others: Redis answers from memory, before anything is on disk"
	answer.Print("github.com/hibiken/asynq")
}

// silence takes the pool's notes about connections that end with the run.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
