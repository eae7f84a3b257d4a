// The locks of etcd's Go client as a peer, with one client for all contenders, and a session and a goroutine for each of them,
// because a session has one key for a name.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

type peer struct {
	endpoints []string
	ttl       int
	client    *clientv3.Client
}

func main() {
	millis, err := strconv.Atoi(os.Args[2])
	check(err)
	endpoints := strings.Split(strings.TrimPrefix(os.Args[1], "etcd://"), ",")
	p := &peer{endpoints: endpoints, ttl: (millis + 999) / 1000}
	p.client, err = p.connected()
	check(err)
	_, err = p.client.Get(context.Background(), "dlock")
	check(err)
	say := make(chan string)
	go func() {
		for line := range say {
			fmt.Println(line)
		}
	}()
	say <- "ready mutex fenced candidate"
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

func (p *peer) connected() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: p.endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// A contender with its claims, and with a session that is opened again after its end.
type contender struct {
	session *concurrency.Session
	label   string
	held    map[string]claim
}

func (p *peer) serve(number string, asked <-chan []string, say chan<- string) {
	me := &contender{label: "peer-" + number, held: map[string]claim{}}
	for words := range asked {
		answer, err := p.answer(me, words)
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		say <- number + " " + answer
	}
}

func (p *peer) answer(me *contender, words []string) (string, error) {
	verb, kind, name := words[0], words[1], words[2]
	ctx := context.Background()
	switch verb {
	case "lock", "try":
		if err := p.open(me); err != nil {
			return "", err
		}
		claim, err := p.newClaim(me.session, kind, name, me.label)
		if err != nil {
			return "", err
		}
		if verb == "lock" {
			wait, wrong := strconv.Atoi(words[3])
			if wrong != nil {
				return "", wrong
			}
			limited, cancel := context.WithTimeout(ctx, time.Duration(wait)*time.Millisecond)
			defer cancel()
			err = again(limited, me.session, func() error { return claim.acquire(limited) })
		} else {
			err = claim.try(ctx)
		}
		if errors.Is(err, concurrency.ErrLocked) || errors.Is(err, context.DeadlineExceeded) {
			return "busy", nil
		}
		if err != nil {
			return "", err
		}
		me.held[name] = claim
		if kind == "mutex" {
			return "held", nil
		}
		limited, cancel := context.WithTimeout(ctx, electionTimeout)
		defer cancel()
		var found *clientv3.GetResponse
		err = again(limited, me.session, func() error {
			once, cancel := context.WithTimeout(limited, 3*time.Second)
			defer cancel()
			found, err = p.client.Get(once, claim.Key())
			return err
		})
		if err != nil || len(found.Kvs) == 0 {
			return "", errors.Join(err, errors.New("the key is gone"))
		}
		return fmt.Sprintf("held %d", found.Kvs[0].CreateRevision), nil
	case "unlock":
		claim := me.held[name]
		if claim == nil {
			return "", errors.New("not held")
		}
		delete(me.held, name)
		limited, cancel := context.WithTimeout(ctx, electionTimeout)
		defer cancel()
		err := again(limited, me.session, func() error {
			once, cancel := context.WithTimeout(limited, 3*time.Second)
			defer cancel()
			return claim.release(once)
		})
		if err != nil {
			return "", err
		}
		return "free", nil
	case "state":
		found, err := p.contenders(ctx, name)
		if err != nil {
			return "", err
		}
		if len(found.Kvs) == 0 {
			return "free", nil
		}
		left, err := p.client.TimeToLive(ctx, clientv3.LeaseID(found.Kvs[0].Lease))
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("held %d", left.TTL*1000), nil
	case "leader":
		if err := p.open(me); err != nil {
			return "", err
		}
		return p.leader(ctx, me.session, name)
	case "time", "handoff":
		return p.measure(verb, name, words[3:])
	}
	return "", errors.New("unknown verb " + verb)
}

// Maximum time in which a cluster elects another leader, on a busy machine.
const electionTimeout = 25 * time.Second

// Repeats a call that failed because a member or the leader died, or that got no reply. Both calls may be repeated, because a
// session has one key for a name.
func again(ctx context.Context, session *concurrency.Session, call func() error) error {
	for {
		err := call()
		if err == nil || ctx.Err() != nil || errors.Is(err, concurrency.ErrSessionExpired) {
			return err
		}
		select {
		case <-session.Done():
			return err
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (p *peer) open(me *contender) error {
	if me.session != nil {
		select {
		case <-me.session.Done():
		default:
			return nil
		}
	}
	session, err := concurrency.NewSession(p.client, concurrency.WithTTL(p.ttl))
	me.session = session
	return err
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
