// Package install installs a chained CNI plugin on a node, keeps it there, and removes it: its binary, and its entry in the network
// configuration that the container runtime uses.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// Config is what an Installer needs.
type Config struct {
	// BinDir and ConfDir are the runtime's directories; Source is the plugin's binary in the image.
	BinDir, ConfDir, Source string
	// Entry is the plugin's configuration, a JSON object. Its type names the binary.
	Entry []byte
	// Versions are the CNI versions that the plugin supports. A network of another version is not touched: with the plugin in it, every pod
	// of the node would fail.
	Versions []string
	// Notify is called once for each change. It may be nil.
	Notify func(Event)
}

// EventKind says what has happened.
type EventKind string

// The events.
const (
	BinaryPlaced EventKind = "BinaryPlaced" // the binary was installed or replaced at Path
	OtherBinary  EventKind = "OtherBinary"  // the binary at Path is of another version and cannot be replaced; it is used
	Chained      EventKind = "Chained"      // the entry was put into the file at Path
	Repaired     EventKind = "Repaired"     // the same file has the entry again: another project had removed it
	Waiting      EventKind = "Waiting"      // Err says why there is no network to be chained to yet
	Contended    EventKind = "Contended"    // another project keeps removing the entry from Path; the next attempt comes later
	Failed       EventKind = "Failed"       // Err will be tried again
	NotCalled    EventKind = "NotCalled"    // Err names a pod that got its network although the plugin was not called
	Removed      EventKind = "Removed"      // Clear removed the entry from Path
	Leftover     EventKind = "Leftover"     // Err says why the entry is still in Path although no agent serves it
)

// Event is something that the node's administrator may have to know.
type Event struct {
	Kind EventKind
	Path string
	Err  error
}

// Installer keeps the plugin in the chain:
//
//   - It installs the binary first, since no pod starts with a chain that names a missing binary.
//   - It finds the configuration that the runtime uses.
//   - It appends the entry to the plugins, or corrects an existing entry, and changes no other byte: by a temporary file and a rename.
//   - It watches, and repairs a missing binary or entry: each time later, and a limited number of times.
//
// Only the first round corrects an existing entry: during an update an agent of another version works at the same time, and the two
// must not overwrite each other's entries for ever.
type Installer struct {
	config              Config
	entry               entry
	pace                pacer         // of repairs of a removed entry
	quietTime           time.Duration // how long a file must not have changed before it is looked at
	resync              time.Duration // between two checks without an event
	last                Event
	otherBinaryNotified bool
	lastChained         string // the file with the entry at the last check; "" in the first round

	inChain atomic.Bool
	fault   atomic.Pointer[error] // the binary's fault at the last check
}

// entry is our element of a list's plugins.
type entry struct {
	kind string
	text []byte
}

// New checks the configuration.
func New(c Config) (*Installer, error) {
	var e struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(c.Entry, &e); err != nil {
		return nil, fmt.Errorf("make CNI installer: read entry: %w", err)
	}
	if e.Type == "" || strings.ContainsRune(e.Type, '/') {
		return nil, fmt.Errorf("make CNI installer: entry's type %q: want the name of a file", e.Type)
	}
	for name, path := range map[string]string{"directory of binaries": c.BinDir, "directory of configurations": c.ConfDir, "binary": c.Source} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("make CNI installer: %s %q: want an absolute path", name, path)
		}
	}
	c.BinDir, c.ConfDir = filepath.Clean(c.BinDir), filepath.Clean(c.ConfDir)
	return &Installer{
		config: c, entry: entry{kind: e.Type, text: c.Entry},
		pace: pacer{first: time.Second, window: 10 * time.Minute, max: 6}, quietTime: 200 * time.Millisecond, resync: time.Minute,
	}, nil
}

// Install puts the plugin into the chain once, and waits until there is a chain. It returns an error at once if waiting does not
// help.
func (i *Installer) Install(ctx context.Context) error { return i.run(ctx, true) }

// Start keeps the plugin in the chain until ctx ends. Failures are notified and tried again, since the agent has other hooks. It
// is a manager.Runnable.
func (i *Installer) Start(ctx context.Context) error { return i.run(ctx, false) }

// Check returns why the plugin is not in the chain, or nil.
func (i *Installer) Check() error {
	if fault := i.fault.Load(); fault != nil && *fault != nil {
		return *fault
	}
	if !isProgram(i.binary()) {
		return fmt.Errorf("the plugin's binary %s is not there", i.binary())
	}
	n, text, err := i.plan(false)
	if err == nil && !bytes.Equal(text, n.data) {
		return fmt.Errorf("%s does not hold the plugin's entry", n.path)
	}
	return err
}

// Chained reports whether the plugin was in the chain at the last check. Unlike Check it reads no files, and may be a moment late.
func (i *Installer) Chained() bool { return i.inChain.Load() }

func (i *Installer) run(ctx context.Context, once bool) error {
	removeTemps(i.config.ConfDir)
	removeTemps(i.config.BinDir)
	w := newWatch(i.config.ConfDir, i.binary(), i.quietTime)
	defer w.close()
	for {
		again := i.resync
		if !w.follow(i.config.ConfDir) || !w.follow(i.config.BinDir) {
			again = i.pace.first
		}
		path, wait, err := i.converge()
		i.inChain.Store(err == nil && wait == 0)
		switch {
		case err == nil && wait == 0:
			if once {
				return nil
			}
			w.followTarget(path)
		case err == nil:
			again = wait
		case errors.Is(err, errChanged):
			again = i.quietTime
		case errors.Is(err, ErrNoNetwork):
			i.notify(Event{Kind: Waiting, Path: i.config.ConfDir, Err: err})
		case once:
			return err
		default:
			i.notify(Event{Kind: Failed, Err: err})
		}
		w.next(ctx, again)
		if ctx.Err() == nil {
			continue
		}
		if once {
			return errors.Join(ctx.Err(), err)
		}
		return nil
	}
}

// converge makes one attempt. If a rewrite is not due yet, it is not made, and wait is how long to wait for it.
func (i *Installer) converge() (path string, wait time.Duration, err error) {
	fault := i.putBinary()
	i.fault.Store(&fault)
	if fault != nil {
		return "", 0, fault
	}
	n, text, err := i.plan(i.lastChained == "")
	if err != nil {
		return "", 0, err
	}
	if bytes.Equal(text, n.data) {
		i.lastChained = n.path
		return n.path, 0, nil
	}
	wait, exhausted := i.pace.wait(time.Now())
	if exhausted {
		i.notify(Event{Kind: Contended, Path: n.path, Err: fmt.Errorf(
			"another project removed the entry %d times within %v", i.pace.max, i.pace.window)})
	}
	if wait > 0 {
		return n.path, wait, nil
	}
	if err := replace(n.path, n.data, text); err != nil {
		return n.path, 0, fmt.Errorf("chain the plugin to %s: %w", n.path, err)
	}
	i.pace.record(time.Now())
	kind := Chained
	if i.lastChained == n.path {
		kind = Repaired
	}
	i.lastChained = n.path
	i.notify(Event{Kind: kind, Path: n.path})
	return n.path, 0, nil
}

// plan returns the runtime's network and the text that its file should have, and changes nothing. With exact, an existing entry that
// differs from ours is corrected.
func (i *Installer) plan(exact bool) (n network, text []byte, err error) {
	n, err = find(i.config.ConfDir)
	switch {
	case err != nil:
		return n, nil, err
	case !n.supportedBy(i.config.Versions):
		return n, nil, fmt.Errorf("%s is of CNI version %q, the plugin supports %s only", n.path, n.versions, strings.Join(i.config.Versions, ", "))
	case !exact && len(n.indicesOf(i.entry.kind)) > 0:
		return n, n.data, nil
	}
	return n, n.withEntry(i.entry), nil
}

// notify calls Notify for an event that differs from the last one. Repaired is always notified.
func (i *Installer) notify(e Event) {
	same := e.Kind == i.last.Kind && e.Path == i.last.Path && fmt.Sprint(e.Err) == fmt.Sprint(i.last.Err)
	i.last = e
	if i.config.Notify != nil && (!same || e.Kind == Repaired) {
		i.config.Notify(e)
	}
}

// pacer limits rewrites of a file that another project also writes. The first rewrite is made at once. Within the window, each further
// rewrite waits twice as long as the previous rewrite did, and there are at most max.
type pacer struct {
	first, window time.Duration
	max           int
	rewrites      []time.Time
}

// wait returns how long the next rewrite has to wait, and whether the reason is that max were made.
func (p *pacer) wait(now time.Time) (d time.Duration, exhausted bool) {
	for len(p.rewrites) > 0 && now.Sub(p.rewrites[0]) >= p.window {
		p.rewrites = p.rewrites[1:]
	}
	n := len(p.rewrites)
	switch {
	case n == 0:
		return 0, false
	case n >= p.max:
		return p.rewrites[n-p.max].Add(p.window).Sub(now), true
	}
	return max(0, p.rewrites[n-1].Add(p.first<<(n-1)).Sub(now)), false
}

func (p *pacer) record(now time.Time) { p.rewrites = append(p.rewrites, now) }
