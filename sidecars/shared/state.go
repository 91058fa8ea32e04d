package shared

import (
	"slices"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/profile"
)

// phase is what can be done with a proxy.
type phase int

const (
	absent   phase = iota // it does not run: what it starts with can be corrected
	starting              // it does not answer yet: nothing is done
	unknown               // what it serves is not known: it gets a configuration from which all goes on
	serving               // it serves what it has confirmed
)

// startLimit is how long a proxy that has a configuration may take to answer.
const startLimit = 15 * time.Second

// seen is how the proxy was found.
type seen struct {
	there   bool
	id      string
	version string        // "" if it does not answer
	silent  time.Duration // how long it does not
}

type state struct {
	// Confirmed is the configuration that the proxy has answered for. Pending was put into force after it, and was not confirmed.
	Confirmed *record `json:"confirmed,omitempty"`
	Pending   *record `json:"pending,omitempty"`
	// Late are earlier pending configurations, newest first: the proxy may still answer one of them.
	Late []*record `json:"late,omitempty"`
}

type record struct {
	Version string `json:"version"`
	// Dir is its directory. Container has confirmed it.
	Dir       string `json:"dir"`
	Container string `json:"container,omitempty"`
	// Hash and Spec are the profile's that it was rendered from.
	Hash    string       `json:"hash"`
	Spec    profile.Spec `json:"spec"`
	Members []member     `json:"members"`
}

// members returns none of a configuration that is not known.
func (r *record) members() []member {
	if r == nil {
		return nil
	}
	return r.Members
}

// member is a pod in a configuration, with what the templates have seen of it.
type member struct {
	Sandbox podnet.Sandbox    `json:"sandbox"`
	Data    profile.SharedPod `json:"data"`
}

func (m member) key() podnet.Key { return m.Sandbox.Key() }

// settle returns the state after what the proxy has answered, and the configuration that is in force: nil if that is not known. A pending
// version that the proxy answers is confirmed, whichever agent has put it into force, and also if a new container has started with it.
func (s state) settle(p seen) (state, *record) {
	switch {
	case !p.there || p.version == "":
		return s, nil
	case s.Pending != nil && p.version == s.Pending.Version:
		s = state{Confirmed: s.Pending}
	case s.Confirmed == nil || p.version != s.Confirmed.Version:
		i := slices.IndexFunc(s.Late, func(r *record) bool { return r.Version == p.version })
		if i < 0 {
			return s, nil
		}
		s.Confirmed, s.Late = s.Late[i], s.Late[:i]
	}
	if s.Confirmed.Container != p.id {
		now := *s.Confirmed
		now.Container = p.id
		s.Confirmed = &now
	}
	return s, s.Confirmed
}

// maxLate bounds how many configurations are remembered that were put into force and not confirmed.
const maxLate = 4

// with returns the state after another configuration was put into force. An earlier pending configuration becomes late: a slow proxy
// may still answer it, and then the agent has to know its members.
func (s state) with(pending *record) state {
	if old := s.Pending; old != nil {
		s.Late = slices.Insert(slices.Clone(s.Late), 0, old)
	}
	s.Pending = pending
	s.Late = slices.DeleteFunc(s.Late, func(r *record) bool { return r.Version == pending.Version })
	s.Late = s.Late[:min(len(s.Late), maxLate)]
	return s
}

// records returns all configurations that the proxy may have.
func (s state) records() (out []*record) {
	for _, one := range append([]*record{s.Confirmed, s.Pending}, s.Late...) {
		if one != nil {
			out = append(out, one)
		}
	}
	return out
}

func (s state) at(dir string) *record {
	for _, one := range s.records() {
		if dir != "" && one.Dir == dir {
			return one
		}
	}
	return nil
}

// phaseOf returns what can be done. current reports whether the proxy has a configuration to start with.
func phaseOf(p seen, inForce *record, current bool) phase {
	switch {
	case !p.there:
		return absent
	case inForce != nil:
		return serving
	case p.version == "" && current && p.silent < startLimit:
		return starting
	}
	return unknown
}
