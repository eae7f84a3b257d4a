// Measurements by redsync itself, so that they do not include the pipes. Waiters poll at redsync's
// default interval.
package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
)

func (p *peer) measure(verb, name string, words []string) (string, error) {
	var numbers []int
	for _, word := range words {
		number, err := strconv.Atoi(word)
		if err != nil {
			return "", err
		}
		numbers = append(numbers, number)
	}
	var took []time.Duration
	var err error
	switch {
	case verb == "time" && len(numbers) == 1:
		took, err = p.time(name, numbers[0])
	case verb == "handoff" && len(numbers) == 2:
		took, err = p.handoff(name, numbers[0], millis(numbers[1]))
	case verb == "contend" && len(numbers) == 4:
		took, err = p.contend(name, numbers[0], numbers[1], numbers[2], millis(numbers[3]))
	default:
		err = errors.New("so many numbers are not for " + verb)
	}
	if err != nil {
		return "", err
	}
	answer := []string{"took"}
	for _, one := range took {
		answer = append(answer, strconv.FormatInt(one.Nanoseconds(), 10))
	}
	return strings.Join(answer, " "), nil
}

// Returns the duration of each pair of lock and unlock, without contention.
func (p *peer) time(name string, pairs int) ([]time.Duration, error) {
	mutex := p.mutexOf(p.first, name)
	took := make([]time.Duration, pairs)
	for i := range took {
		begun := time.Now()
		if err := mutex.Lock(); err != nil {
			return nil, err
		}
		if _, err := mutex.Unlock(); err != nil {
			return nil, err
		}
		took[i] = time.Since(begun)
	}
	return took, nil
}

// Returns the times from the release of one client to the grant of the other, which waits for it.
func (p *peer) handoff(name string, turns int, hold time.Duration) ([]time.Duration, error) {
	// A client may request the lock as soon as the other one holds it.
	asks := []chan bool{make(chan bool, 1), make(chan bool, 1)}
	asks[0] <- true
	released := make(chan time.Time, 1)
	return p.together(2, 2, func(me int, client *client) ([]time.Duration, error) {
		var took []time.Duration
		mutex := p.mutexOf(client, name)
		for turn := range turns {
			<-asks[me]
			if err := mutex.Lock(); err != nil {
				return nil, err
			}
			if me+turn > 0 {
				took = append(took, time.Since(<-released))
			}
			asks[1-me] <- true
			time.Sleep(hold)
			released <- time.Now()
			if _, err := mutex.Unlock(); err != nil {
				return nil, err
			}
		}
		return took, nil
	})
}

// Returns the duration of each wait of several tasks.
func (p *peer) contend(name string, clients, tasks, turns int, hold time.Duration) ([]time.Duration, error) {
	return p.together(clients, tasks, func(_ int, client *client) ([]time.Duration, error) {
		var waits []time.Duration
		mutex := p.mutexOf(client, name)
		for range turns {
			asked := time.Now()
			if err := mutex.Lock(); err != nil {
				return nil, err
			}
			waits = append(waits, time.Since(asked))
			time.Sleep(hold)
			if _, err := mutex.Unlock(); err != nil {
				return nil, err
			}
		}
		return waits, nil
	})
}

func (p *peer) together(clients, tasks int, part func(int, *client) ([]time.Duration, error)) ([]time.Duration, error) {
	connected, err := p.connected(clients)
	if err != nil {
		return nil, err
	}
	took, errs := make([][]time.Duration, tasks), make([]error, tasks)
	var parts sync.WaitGroup
	for me := range tasks {
		parts.Add(1)
		go func() {
			defer parts.Done()
			took[me], errs[me] = part(me, connected[me%clients])
		}()
	}
	parts.Wait()
	var all []time.Duration
	for _, one := range took {
		all = append(all, one...)
	}
	return all, errors.Join(errs...)
}

func (p *peer) mutexOf(client *client, name string) *redsync.Mutex {
	return client.sync.NewMutex(name, redsync.WithExpiry(p.ttl), redsync.WithTries(math.MaxInt))
}

func millis(number int) time.Duration {
	return time.Duration(number) * time.Millisecond
}
