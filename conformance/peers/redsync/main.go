// Redsync as a peer: one client for all contenders, and a goroutine for each.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redispool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type peer struct {
	// Of the last server; there are several for a RedLock.
	client *redis.Client
	sync   *redsync.Redsync
	ttl    time.Duration
}

func main() {
	var pools []redispool.Pool
	var client *redis.Client
	for _, url := range strings.Split(os.Args[1], ",") {
		options, err := redis.ParseURL(url)
		check(err)
		client = redis.NewClient(options)
		check(client.Ping(context.Background()).Err())
		pools = append(pools, goredis.NewPool(client))
	}
	ttl, err := strconv.Atoi(os.Args[2])
	check(err)
	p := &peer{client, redsync.New(pools...), time.Duration(ttl) * time.Millisecond}
	say := make(chan string)
	go func() {
		for line := range say {
			fmt.Println(line)
		}
	}()
	say <- "ready mutex"
	contenders := map[string]chan []string{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		number := words[0]
		if contenders[number] == nil {
			contenders[number] = make(chan []string, 1)
			go p.contend(number, contenders[number], say)
		}
		contenders[number] <- words[1:]
	}
	// Like a crash: what is held stays held.
}

func (p *peer) contend(number string, asked <-chan []string, say chan<- string) {
	held := map[string]*redsync.Mutex{}
	for words := range asked {
		answer, err := p.answer(held, words)
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		say <- number + " " + answer
	}
}

func (p *peer) answer(held map[string]*redsync.Mutex, words []string) (string, error) {
	verb, kind, name := words[0], words[1], words[2]
	if kind != "mutex" {
		return "", errors.New("unknown kind " + kind)
	}
	switch verb {
	case "lock", "try":
		wait := 0
		if verb == "lock" {
			var err error
			if wait, err = strconv.Atoi(words[3]); err != nil {
				return "", err
			}
		}
		return p.lock(held, name, time.Duration(wait)*time.Millisecond)
	case "unlock":
		mutex := held[name]
		if mutex == nil {
			return "", errors.New("not held")
		}
		delete(held, name)
		if _, err := mutex.Unlock(); err != nil {
			return "", err
		}
		return "free", nil
	case "time":
		pairs, err := strconv.Atoi(words[3])
		if err != nil {
			return "", err
		}
		return p.time(name, pairs)
	case "state":
		left, err := p.client.PTTL(context.Background(), name).Result()
		if err != nil {
			return "", err
		}
		// -2 without a unit: there is no such key.
		if left == -2 {
			return "free", nil
		}
		return fmt.Sprintf("held %d", left.Milliseconds()), nil
	}
	return "", errors.New("unknown verb " + verb)
}

func (p *peer) lock(held map[string]*redsync.Mutex, name string, wait time.Duration) (string, error) {
	// Whoever waits asks again and again: nothing wakes it.
	const pause = 10 * time.Millisecond
	tries := 1 + int(wait/pause)
	mutex := p.sync.NewMutex(name, redsync.WithExpiry(p.ttl), redsync.WithTries(tries), redsync.WithRetryDelay(pause))
	err := mutex.Lock()
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return "busy", nil
	}
	if err != nil {
		return "", err
	}
	held[name] = mutex
	return "held", nil
}

// The median of so many locks and unlocks, in nanoseconds.
func (p *peer) time(name string, pairs int) (string, error) {
	took := make([]time.Duration, pairs)
	for i := range took {
		begun := time.Now()
		mutex := p.sync.NewMutex(name, redsync.WithExpiry(p.ttl))
		if err := mutex.Lock(); err != nil {
			return "", err
		}
		if _, err := mutex.Unlock(); err != nil {
			return "", err
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return fmt.Sprintf("took %d", took[pairs/2].Nanoseconds()), nil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
