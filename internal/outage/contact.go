// Package outage is how the agent notices that the API server is away, and that it is back.
package outage

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Contact is whether the API server answers the agent. The zero value is ready.
//
//   - Whoever asks the API server all the time, such as an informer, notes how each of its attempts ends;
//   - the first attempt that fails is logged, the first certificate that is not accepted, and the first moment at which all succeed again;
//   - in between, Err names the reason of the asker that failed first, until that one succeeds, and Away the time since the first failure.
type Contact struct {
	mu          sync.Mutex
	failing     map[any]error // the newest reason, by asker
	first       any           // the asker whose reason Err names
	since       time.Time
	certificate bool // a certificate that is not accepted was logged
}

// Note notes how an attempt of an asker has ended; an asker is a key of the caller's, and any error of it is a loss of contact.
func (c *Contact) Note(ctx context.Context, asker any, err error) {
	if err == nil {
		if away, back := c.succeeded(asker); back {
			log.FromContext(ctx).Info("API server reached again", "duration", away.String())
		}
		return
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // whose text is another one for each asker
		err = wrapped.Err
	}
	if c.failed(asker, err) {
		log.FromContext(ctx).Info("no contact with the API server", "reason", loss(err)+": "+err.Error())
	}
}

// failed stores a reason, and reports whether it is to be logged.
func (c *Contact) failed(asker any, err error) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failing) == 0 {
		c.failing, c.first, c.since, c.certificate = map[any]error{}, asker, time.Now(), false
		news = true
	}
	c.failing[asker] = err
	if untrusted(err) && !c.certificate {
		c.certificate, news = true, true
	}
	return news
}

// succeeded reports whether no asker fails any more, and how long some did.
func (c *Contact) succeeded(asker any) (away time.Duration, back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, failed := c.failing[asker]; !failed {
		return 0, false
	}
	delete(c.failing, asker)
	if asker == c.first {
		for c.first = range c.failing {
			break
		}
	}
	return time.Since(c.since), len(c.failing) == 0
}

// Err returns why the agent has no contact with the API server, or nil. Its text stays the same for as long as the reason does.
func (c *Contact) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failing) == 0 {
		return nil
	}
	reason := c.failing[c.first]
	return fmt.Errorf("%s, since %s: %w", loss(reason), c.since.UTC().Format(time.RFC3339), reason)
}

// loss returns how contact is lost by an error. Waiting helps against one way only.
func loss(err error) string {
	switch {
	case untrusted(err):
		return "the API server's certificate is not accepted"
	case away(err):
		return "the API server does not answer"
	}
	return "the API server refuses the agent"
}

func untrusted(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
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
