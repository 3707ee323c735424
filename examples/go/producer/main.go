// Submits one task over AMQP: go run ./producer QUEUE KEY N [DELAY_MS]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	queue, key, n := os.Args[1], os.Args[2], os.Args[3]
	var delayMs int64
	if len(os.Args) > 4 {
		var err error
		if delayMs, err = strconv.ParseInt(os.Args[4], 10, 64); err != nil {
			log.Fatal(err)
		}
	}
	if err := submit(queue, key, n, delayMs); err != nil {
		log.Fatal(err)
	}
}

func submit(queue, id, n string, delayMs int64) error {
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
	// The broker returns a message that no queue takes, before it confirms it.
	returned := channel.NotifyReturn(make(chan amqp.Return, 1))
	ctx := context.Background()
	key := "submit." + queue
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "duetime.in", key, true, false, amqp.Publishing{
		ContentType:  "application/json",
		DeliveryMode: amqp.Persistent,
		// The key: sent twice, it is still one task.
		MessageId: id,
		Headers:   amqp.Table{"duetime-delay-ms": delayMs},
		Body:      fmt.Appendf(nil, `{"n": %s}`, n),
	})
	if err != nil {
		return err
	}
	kept, err := confirm.WaitContext(ctx)
	if err != nil {
		return err
	}
	if !kept {
		return errors.New("the broker has not kept it")
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
