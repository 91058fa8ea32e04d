// Package agentstatus is what an agent writes about itself on its own pod, and what the commands for people read there.
package agentstatus

import (
	"encoding/json"
	"fmt"
	"time"
)

// Annotation is the key on the agent's pod. Its value is a Status as JSON.
const Annotation = "pod-network-controller.istio.io/agent"

// Status is one agent at one time.
type Status struct {
	Version   string    `json:"version"`            // release
	Revision  string    `json:"revision,omitempty"` // commit
	Backend   string    `json:"backend,omitempty"`  // nftables or iptables
	PodsFrom  string    `json:"podsFrom,omitempty"` // kubelet or api, whichever gives the agent the pods of its node
	Ready     bool      `json:"ready"`
	NotReady  []string  `json:"notReady,omitempty"` // failing readiness checks, in words
	Hook      []Hook    `json:"hooks,omitempty"`
	LastError *Error    `json:"lastError,omitempty"`
	Inspect   *Inspect  `json:"inspect,omitempty"`
	Time      time.Time `json:"time"` // of writing
}

// settling is longer than an agent takes to write that it has become ready.
const settling = 15 * time.Second

// Outdated reports whether what the Status says of readiness was overtaken by the pod's condition Ready: it was written before that became True,
// a moment ago. readySince is zero for a pod that is not ready.
func (s Status) Outdated(readySince, now time.Time) bool {
	return !readySince.IsZero() && s.Time.Before(readySince.Add(time.Second)) && now.Sub(readySince) < settling // the condition has full seconds
}

// Hook is one way by which the agent learns of sandboxes: watch, nri or cni.
type Hook struct {
	Name    string `json:"name"`
	Up      bool   `json:"up"`
	Message string `json:"message,omitempty"` // why not
}

// Error is the newest failure.
type Error struct {
	Pod     string    `json:"pod,omitempty"` // NAMESPACE/NAME
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
}

// Inspect is where the agent answers `inspect`.
type Inspect struct {
	Port        int    `json:"port"`
	Certificate string `json:"certificate"` // SHA-256 of the DER certificate, hexadecimal: what a client has to see
}

// Parse returns the status that an annotation's value has.
func Parse(value string) (Status, error) {
	var s Status
	if err := json.Unmarshal([]byte(value), &s); err != nil {
		return Status{}, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	return s, nil
}

// String returns the annotation's value.
func (s Status) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		return "{}" // no field can fail
	}
	return string(text)
}
