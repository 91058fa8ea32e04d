package intent

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

// KeyEgressNames is an annotation of namespaces: the names to which their pods may connect, for templates of ProxyProfiles. A pod's own has no
// effect: a pod must not widen for itself what its namespace allows.
const KeyEgressNames = "pod-network-controller.istio.io/egress-names"

// EgressName allows one name of the DNS, in lower case and without a dot at its end or, with Below, all names below it and not itself.
type EgressName struct {
	Name  string
	Below bool
}

const (
	// maxEgressNames is more than 256 KiB of annotations hold of usual names.
	maxEgressNames  = 10000
	wantEgressNames = "names such as api.example.com, or *.example.com for all names below example.com, separated by commas, or nothing"
)

// EgressNames returns what a namespace allows, sorted: nothing without the annotation, or for a namespace that is not known (nil).
func EgressNames(ns *corev1.Namespace) ([]EgressName, error) {
	value := annotationsOf(ns)[KeyEgressNames]
	if value == "" {
		return nil, nil
	}
	out, err := items("annotation "+KeyEgressNames+" of namespace "+ns.Name, value, wantEgressNames, maxEgressNames, egressName)
	slices.SortFunc(out, func(a, b EgressName) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// hostName is a name whose labels are letters, digits, - and _. It is one harmless word in every file.
var hostName = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// maxHostName is the longest name of the DNS.
const maxHostName = 253

func egressName(item string) (EgressName, error) {
	name := strings.TrimSuffix(strings.ToLower(item), ".")
	name, below := strings.CutPrefix(name, "*.")
	_, errAddress := netip.ParseAddr(strings.Trim(name, "[]"))
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	switch {
	case errAddress == nil:
		return EgressName{}, errors.New("is an address")
	case strings.Contains(name, "*"):
		return EgressName{}, errors.New("has a * that is not the whole first label")
	case strings.ContainsFunc(item, func(r rune) bool { return r > unicode.MaxASCII }):
		return EgressName{}, errors.New("is not ASCII: write it as it is in the DNS (xn--...)")
	case strings.Contains(name, ":"):
		return EgressName{}, errors.New("has a port or a scheme: a name counts for all ports")
	case len(name) > maxHostName || !hostName.MatchString(name):
		return EgressName{}, errors.New("is no name of the DNS")
	case strings.Trim(last, "0123456789") == "":
		return EgressName{}, errors.New("ends with a number, as addresses do")
	case len(labels) == 1 && !below:
		return EgressName{}, errors.New("has no dot: names are looked up without the pod's search domains")
	}
	return EgressName{Name: name, Below: below}, nil
}

// egressNames tells a pod that it cannot allow itself names. What its namespace says is no part of the Spec: a list that cannot be read must
// leave the pod's rules in place, by which nothing passes until the list is right.
func (r *reader) egressNames() {
	if _, own := r.annotations[KeyEgressNames]; own {
		r.note("annotation %s of the pod has no effect: only its namespace's counts", KeyEgressNames)
	}
}
