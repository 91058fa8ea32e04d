package controllers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Contact is whether the API server answers the agent. The zero value is ready.
//
//   - Whoever asks the API server all the time, such as an informer, notes how each of its attempts ends;
//   - the first attempt that fails is logged, and so is the first moment at which all succeed again;
//   - in between, Err names the newest reason, and Away the time since the first.
type Contact struct {
	mu        sync.Mutex
	failing   map[any]struct{} // by asker
	since     time.Time
	reason    error
	untrusted bool // the reason is the API server's certificate
}

// Note notes how an attempt of an asker has ended; an asker is a key of the caller's. An answer that refuses the agent is a failure: it
// learns nothing by it. Any other answer is contact.
func (c *Contact) Note(ctx context.Context, asker any, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !noContact(err) {
		c.succeeded(ctx, asker)
		return
	}
	if c.failing == nil {
		c.failing = map[any]struct{}{}
	}
	first := len(c.failing) == 0
	if first {
		c.since = time.Now()
	}
	c.failing[asker] = struct{}{}
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // whose text is another one for each asker
		err = wrapped.Err
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	if first || untrusted && !c.untrusted {
		log.FromContext(ctx).Info("API server not reached", "reason", err.Error())
	}
	c.reason, c.untrusted = err, untrusted
}

func (c *Contact) succeeded(ctx context.Context, asker any) {
	if _, failed := c.failing[asker]; !failed {
		return
	}
	if delete(c.failing, asker); len(c.failing) == 0 {
		log.FromContext(ctx).Info("API server reached again", "duration", time.Since(c.since).String())
		c.reason, c.untrusted = nil, false
	}
}

// noContact reports whether an error leaves the agent without what it asked for, whatever it asks.
func noContact(err error) bool {
	return err != nil && (away(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err))
}

// Err returns why the agent has no contact with the API server, or nil. Its text stays the same for as long as the reason does.
func (c *Contact) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch since := c.since.UTC().Format(time.RFC3339); {
	case len(c.failing) == 0:
		return nil
	case c.untrusted:
		return fmt.Errorf("the API server's certificate is not accepted, since %s: %w", since, c.reason)
	default:
		return fmt.Errorf("the API server does not answer, since %s: %w", since, c.reason)
	}
}

// Away returns for how long there has been no contact, or 0.
func (c *Contact) Away() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failing) == 0 {
		return 0
	}
	return time.Since(c.since)
}
