// Redsync as a peer, with one client for all contenders, and a goroutine for each of them.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	redispool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type peer struct {
	urls string
	ttl  time.Duration
	// Client of all contenders.
	first *client
	// Guards clients, which are the first one and those of contests.
	mutex   sync.Mutex
	clients []*client
}

type client struct {
	// Connection to the last server. A RedLock has several.
	last *redis.Client
	sync *redsync.Redsync
}

func main() {
	ttl, err := strconv.Atoi(os.Args[2])
	check(err)
	p := &peer{urls: os.Args[1], ttl: time.Duration(ttl) * time.Millisecond}
	clients, err := p.connected(1)
	check(err)
	p.first = clients[0]
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
			go p.serve(number, contenders[number], say)
		}
		contenders[number] <- words[1:]
	}
	// As in a crash, no lock is released.
}

// Returns this number of clients, and connects them if needed.
func (p *peer) connected(count int) ([]*client, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for len(p.clients) < count {
		added := &client{}
		var pools []redispool.Pool
		for _, url := range strings.Split(p.urls, ",") {
			options, err := redis.ParseURL(url)
			if err != nil {
				return nil, err
			}
			added.last = redis.NewClient(options)
			if err := added.last.Ping(context.Background()).Err(); err != nil {
				return nil, err
			}
			pools = append(pools, goredis.NewPool(added.last))
		}
		added.sync = redsync.New(pools...)
		p.clients = append(p.clients, added)
	}
	return p.clients[:count], nil
}

func (p *peer) serve(number string, asked <-chan []string, say chan<- string) {
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
	case "time", "handoff", "contend":
		return p.measure(verb, name, words[3:])
	case "state":
		left, err := p.first.last.PTTL(context.Background(), name).Result()
		if err != nil {
			return "", err
		}
		// -2, which the client returns without a unit, means that the key does not exist.
		if left == -2 {
			return "free", nil
		}
		return fmt.Sprintf("held %d", left.Milliseconds()), nil
	}
	return "", errors.New("unknown verb " + verb)
}

func (p *peer) lock(held map[string]*redsync.Mutex, name string, wait time.Duration) (string, error) {
	// A waiter polls, because it receives no notification.
	const pause = 10 * time.Millisecond
	tries := 1 + int(wait/pause)
	mutex := p.first.sync.NewMutex(name, redsync.WithExpiry(p.ttl), redsync.WithTries(tries), redsync.WithRetryDelay(pause))
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

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
