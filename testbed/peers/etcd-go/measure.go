// Measurements by this program itself, so that they do not include the pipes.
package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"
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
		took, err = p.handoff(name, numbers[0], time.Duration(numbers[1])*time.Millisecond)
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
	session, err := concurrency.NewSession(p.client, concurrency.WithTTL(p.ttl))
	if err != nil {
		return nil, err
	}
	defer session.Close()
	ctx := context.Background()
	mutex := concurrency.NewMutex(session, name)
	took := make([]time.Duration, pairs)
	for i := range took {
		begun := time.Now()
		if err := mutex.Lock(ctx); err != nil {
			return nil, err
		}
		if err := mutex.Unlock(ctx); err != nil {
			return nil, err
		}
		took[i] = time.Since(begun)
	}
	return took, nil
}

// Returns the times from the release of one client to the grant of the other, which waits for it.
func (p *peer) handoff(name string, turns int, hold time.Duration) ([]time.Duration, error) {
	asks := []chan bool{make(chan bool, 1), make(chan bool, 1)}
	asks[0] <- true
	released := make(chan time.Time, 1)
	took, failed := make(chan []time.Duration, 2), make(chan error, 2)
	for me := range 2 {
		go func() {
			mine, err := p.turns(name, me, turns, hold, asks, released)
			took <- mine
			failed <- err
		}()
	}
	return append(<-took, <-took...), errors.Join(<-failed, <-failed)
}

func (p *peer) turns(name string, me, turns int, hold time.Duration, asks []chan bool, released chan time.Time) ([]time.Duration, error) {
	client, err := p.connected()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(p.ttl))
	if err != nil {
		return nil, err
	}
	defer session.Close()
	ctx := context.Background()
	var took []time.Duration
	mutex := concurrency.NewMutex(session, name)
	for turn := range turns {
		<-asks[me]
		if err := mutex.Lock(ctx); err != nil {
			return nil, err
		}
		if me+turn > 0 {
			took = append(took, time.Since(<-released))
		}
		asks[1-me] <- true
		time.Sleep(hold)
		released <- time.Now()
		if err := mutex.Unlock(ctx); err != nil {
			return nil, err
		}
	}
	return took, nil
}
