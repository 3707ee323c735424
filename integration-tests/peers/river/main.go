// Command river runs the works of the peers' protocol on River, a job queue on PostgreSQL.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	work "duetime/peers/go"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// The settings of River's own benchmark, `river bench`, whose comments say that they maximise throughput.
const (
	fetchCooldown = 2 * time.Millisecond
	fetchPoll     = 20 * time.Millisecond
	maxWorkers    = 2_000
)

// workerConnections is enough for fetching, completing, maintenance and four submitters.
const workerConnections = 20

type arrivalArgs struct{ work.Task }

func (arrivalArgs) Kind() string { return "arrival" }

type arrivalWorker struct {
	river.WorkerDefaults[arrivalArgs]
	arrivals *work.Arrivals
}

func (w *arrivalWorker) Work(_ context.Context, job *river.Job[arrivalArgs]) error {
	w.arrivals.Record(job.Args.Task, time.Now())
	return nil
}

type peer struct {
	driver *riverpgxv5.Driver
	client *river.Client[pgx.Tx]
}

func newPeer(ctx context.Context, url string, connections int) *peer {
	config, err := pgxpool.ParseConfig(url)
	work.Check(err)
	config.MaxConns = int32(connections)
	config.MinConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	work.Check(err)
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: logger()})
	work.Check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	work.Check(err)
	inserter, err := river.NewClient(driver, &river.Config{Logger: logger()})
	work.Check(err)
	return &peer{driver: driver, client: inserter}
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// options leave a task that is due at once to be available at once.
func options(task work.Task) *river.InsertOpts {
	if time.Until(task.Due()) <= 0 {
		return nil
	}
	return &river.InsertOpts{ScheduledAt: task.Due()}
}

func (p *peer) SubmitOne(task work.Task) error {
	_, err := p.client.Insert(context.Background(), arrivalArgs{task}, options(task))
	return err
}

func (p *peer) Submit(tasks []work.Task) error {
	params := make([]river.InsertManyParams, 0, len(tasks))
	for _, task := range tasks {
		params = append(params, river.InsertManyParams{Args: arrivalArgs{task}, InsertOpts: options(task)})
	}
	_, err := p.client.InsertManyFast(context.Background(), params)
	return err
}

func (p *peer) Start(arrivals *work.Arrivals) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &arrivalWorker{arrivals: arrivals})
	client, err := river.NewClient(p.driver, &river.Config{
		FetchCooldown:     fetchCooldown,
		FetchPollInterval: fetchPoll,
		Logger:            logger(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: maxWorkers}},
		Workers:           workers,
	})
	if err != nil {
		return err
	}
	p.client = client
	return client.Start(context.Background())
}

func (p *peer) Stop() {
	work.Check(p.client.Stop(context.Background()))
}

func main() {
	order := work.Read()
	connections := workerConnections
	if order.Work == "submit" {
		connections = order.Connections
	}
	answer := order.Run(newPeer(context.Background(), order.PostgresURL, connections))
	answer.Settings = fmt.Sprintf("FetchCooldown %v, FetchPollInterval %v, MaxWorkers %d (those of `river bench`), LISTEN/NOTIFY on, "+
		"InsertManyFast (COPY) of %d, scheduler each 5 s with a look-ahead of 5 s (fixed by River), pgx pool %d",
		fetchCooldown, fetchPoll, maxWorkers, order.Batch, connections)
	answer.Unfair = "to it: it keeps finished jobs for a day, where others delete them"
	answer.Print("github.com/riverqueue/river")
}
