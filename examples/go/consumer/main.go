// Works on the tasks of one queue until it is stopped: go run ./consumer QUEUE
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	steps    = 3
	stepTime = 1200 * time.Millisecond
)

// report is what Duetime is told of a task.
type report struct {
	Status   string `json:"status"`
	Message  string `json:"status_msg,omitempty"`
	Progress int    `json:"progress,omitempty"`
	Result   any    `json:"result,omitempty"`
}

// work takes some steps and says after each how far it is. An error is a failed attempt.
func work(body []byte, progress func(percent int) error) (any, error) {
	var payload struct{ N int }
	if err := json.Unmarshal(body, &payload); err != nil {
		return nil, err
	}
	if payload.N < 0 {
		return nil, errors.New("n must not be negative")
	}
	for step := range steps {
		if err := progress(100 * step / steps); err != nil {
			return nil, err
		}
		time.Sleep(stepTime)
	}
	return map[string]int{"square": payload.N * payload.N}, nil
}

// send reports on a task, if its queue wants to be told: only one with settle = result does.
func send(channel *amqp.Channel, returned <-chan amqp.Return, task amqp.Delivery, what report) error {
	if task.ReplyTo == "" {
		return nil
	}
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	ctx := context.Background()
	key := "result." + task.Type
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "duetime.in", key, true, false, amqp.Publishing{
		ContentType:   "application/json",
		DeliveryMode:  amqp.Persistent,
		CorrelationId: task.CorrelationId,
		// Which attempt it is about, and the proof that it was ours.
		Headers: amqp.Table{
			"duetime-attempt": task.Headers["duetime-attempt"],
			"duetime-receipt": task.Headers["duetime-receipt"],
		},
		Body: body,
	})
	if err != nil {
		return err
	}
	kept, err := confirm.WaitContext(ctx)
	if err == nil && !kept {
		err = errors.New("the broker has not kept it")
	}
	if err != nil {
		return err
	}
	select {
	case message, ok := <-returned:
		if ok {
			return fmt.Errorf("no queue takes it: %s", message.ReplyText)
		}
	default:
	}
	return nil
}

func handle(channel *amqp.Channel, returned <-chan amqp.Return, task amqp.Delivery) error {
	// Each report of `running` moves the deadline.
	var unsent error
	result, failure := work(task.Body, func(percent int) error {
		unsent = send(channel, returned, task, report{Status: "running", Progress: percent})
		return unsent
	})
	if unsent != nil {
		// Without an ack it comes again, to a consumer that can be reached.
		return unsent
	}
	if failure != nil && task.ReplyTo == "" {
		return task.Reject(false)
	}
	outcome := report{Status: "succeeded", Result: result}
	if failure != nil {
		outcome = report{Status: "failed", Message: failure.Error()}
	}
	if err := send(channel, returned, task, outcome); err != nil {
		return err
	}
	fmt.Println(task.MessageId)
	return task.Ack(false)
}

func consume(queue string) error {
	connection, err := amqp.Dial(os.Getenv("AMQP_URL"))
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	// The broker returns a report that no queue takes, before it confirms it.
	returned := channel.NotifyReturn(make(chan amqp.Return, 1))
	if err := channel.Qos(1, 0, false); err != nil {
		return err
	}
	tasks, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for task := range tasks {
		if err := handle(channel, returned, task); err != nil {
			return err
		}
	}
	return errors.New("the connection is lost")
}

func main() {
	log.Fatal(consume(os.Args[1]))
}
