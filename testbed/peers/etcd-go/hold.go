// The locks and the terms of elections that a contender can hold.
package main

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// A claim of a contender, which waits or holds.
type claim interface {
	// Waits until the claim holds.
	acquire(ctx context.Context) error
	// Acquires without waiting. Fails with concurrency.ErrLocked if another claim holds or waits.
	try(ctx context.Context) error
	release(ctx context.Context) error
	Key() string
}

func (p *peer) newClaim(session *concurrency.Session, kind, name, label string) (claim, error) {
	switch kind {
	case "mutex", "fenced":
		return lock{concurrency.NewMutex(session, name)}, nil
	case "candidate":
		return candidate{concurrency.NewElection(session, name), p, name, label, session.Lease()}, nil
	}
	return nil, errors.New("unknown kind " + kind)
}

type lock struct{ *concurrency.Mutex }

func (l lock) acquire(ctx context.Context) error { return l.Lock(ctx) }
func (l lock) try(ctx context.Context) error     { return l.TryLock(ctx) }
func (l lock) release(ctx context.Context) error { return l.Unlock(ctx) }

type candidate struct {
	*concurrency.Election
	peer        *peer
	name, label string
	lease       clientv3.LeaseID
}

func (c candidate) acquire(ctx context.Context) error {
	err := c.Campaign(ctx, c.label)
	if err != nil {
		// A campaign whose first request fails does not resign.
		c.peer.client.Delete(context.Background(), fmt.Sprintf("%s/%x", c.name, c.lease))
	}
	return err
}
func (c candidate) release(ctx context.Context) error { return c.Resign(ctx) }

// An election has no try, and a campaign would wait behind the other candidates.
func (c candidate) try(ctx context.Context) error {
	found, err := c.peer.contenders(ctx, c.name)
	if err == nil && len(found.Kvs) > 0 {
		err = concurrency.ErrLocked
	}
	if err != nil {
		return err
	}
	return c.acquire(ctx)
}

// Returns the label of an election's leader as the reply to a request.
func (p *peer) leader(ctx context.Context, session *concurrency.Session, name string) (string, error) {
	found, err := concurrency.NewElection(session, name).Leader(ctx)
	if errors.Is(err, concurrency.ErrElectionNoLeader) {
		return "vacant", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("leader %s", found.Kvs[0].Value), nil
}

// Returns the first key of a lock or election.
func (p *peer) contenders(ctx context.Context, name string) (*clientv3.GetResponse, error) {
	return p.client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithLimit(1))
}
