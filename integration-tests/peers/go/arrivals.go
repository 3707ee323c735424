package work

import (
	"bufio"
	"os"
	"strconv"
	"sync"
	"time"
)

// firstPending is the number of the first task that is due in a month; it never arrives.
const firstPending = 1_000_000_000

// Arrivals is the file of what the workers ran.
type Arrivals struct {
	mutex  sync.Mutex
	file   *os.File
	writer *bufio.Writer
	seen   []bool
	count  int
}

func openArrivals(path string) *Arrivals {
	file, err := os.Create(path)
	Check(err)
	return &Arrivals{file: file, writer: bufio.NewWriterSize(file, 1<<20)}
}

// Record is what a worker calls with the instant that its handler took first.
func (a *Arrivals) Record(task Task, got time.Time) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	line := strconv.AppendInt(a.writer.AvailableBuffer(), task.Number, 10)
	line = strconv.AppendInt(append(line, ' '), task.DueUS, 10)
	line = strconv.AppendInt(append(line, ' '), got.UnixMicro(), 10)
	_, err := a.writer.Write(append(line, '\n'))
	Check(err)
	if task.Number >= firstPending {
		return
	}
	for int64(len(a.seen)) <= task.Number {
		a.seen = append(a.seen, false)
	}
	if !a.seen[task.Number] {
		a.seen[task.Number] = true
		a.count++
	}
}

// Count is the number of different tasks that have arrived.
func (a *Arrivals) Count() int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.count
}

// await returns when so many have arrived, or at the deadline.
func (a *Arrivals) await(count int, deadline time.Time) {
	for a.Count() < count && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
}

func (a *Arrivals) close() {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	Check(a.writer.Flush())
	Check(a.file.Close())
}
