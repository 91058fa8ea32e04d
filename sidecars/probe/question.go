// Package probe asks proxies whether they are ready and alive, outside of the reconciles.
//
//	lanes.go     questions in goroutines of their own
//	results.go   what the answers mean, and when the next question is due
//	question.go  what is asked, and where
package probe

import "istio-pod-network-controller/sidecars/profile"

// Question is what a proxy is asked.
type Question int

// The questions.
const (
	Ready     Question = iota
	Alive              // whether a proxy that has been ready still works; it is replaced if it does not
	TakesOver          // whether an Envoy serves, where no profile says what else to ask it
)

// Of returns where and how the proxy of an epoch is asked.
func (q Question) Of(p *profile.Version, epoch uint32) profile.Probe {
	if q == Alive {
		return p.Liveness(epoch)
	}
	return p.Readiness(epoch)
}
