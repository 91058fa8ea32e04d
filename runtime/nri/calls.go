package nri

import (
	"fmt"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// calls are the runtime's calls that are under way, and how long the runtime waits for each.
type calls struct {
	mu       sync.Mutex
	open     int                     // calls that are not answered yet
	lastEnd  time.Time               // end of the last call
	handlers map[*time.Time]struct{} // when handlers began that have not returned, of answered calls too
	limit    func() time.Duration    // the runtime's limit for one call
}

func unknownLimit() time.Duration { return 0 }

func (c *calls) begin() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	return time.Now()
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.lastEnd = time.Now()
}

// awaitQuiet returns in a gap between the runtime's calls: disconnecting during a call lets the pod start without rules. If there is no
// gap longer than quietGap within maxQuietGapWait, any gap will do.
func (c *calls) awaitQuiet() {
	began := time.Now()
	short, end := began.Add(maxQuietGapWait), began.Add(maxQuietGapWait+c.runtimeLimit())
	quiet := func(now time.Time) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.open == 0 && (now.Sub(c.lastEnd) > quietGap || now.After(short))
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for now := began; !quiet(now) && now.Before(end); {
		now = <-tick.C
	}
}

// track notes a handler that begins now, until it has ended.
func (c *calls) track() (ended func()) {
	began := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handlers == nil {
		c.handlers = map[*time.Time]struct{}{}
	}
	c.handlers[&began] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.handlers, &began)
	}
}

// live returns an error while a handler runs for longer than twice the runtime's limit.
func (c *calls) live() error {
	limit := 2 * c.runtimeLimit()
	c.mu.Lock()
	defer c.mu.Unlock()
	for began := range c.handlers {
		if took := time.Since(*began); took > limit {
			return fmt.Errorf("a call of the runtime is at work for %s; the runtime waits %s", took.Round(time.Second), limit/2)
		}
	}
	return nil
}

// runtimeLimit returns how long the runtime waits for an answer. Runtimes with NRI older than 0.7 do not say; then it is NRI's default.
func (c *calls) runtimeLimit() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit := c.limit(); limit > 0 {
		return limit
	}
	return api.DefaultPluginRequestTimeout
}

func (c *calls) setLimit(limit func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
}
