package intent

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"istio-pod-network-controller/iptables"
)

// maxShown bounds how much of a wrong value a message repeats: annotations may have 256 KiB.
const maxShown = 80

// ValueError says which setting has an invalid value, and what would be valid.
type ValueError struct {
	// Key is the annotation's key, or the flag's name.
	Key   string
	Value string
	Want  string
	// Why says what is wrong with the value if Want alone does not.
	Why string
}

// Error names the key, the value, and what is valid.
func (e *ValueError) Error() string {
	msg := fmt.Sprintf("%s: value %s", e.Key, shown(e.Value))
	if e.Why != "" {
		msg += ": " + e.Why
	}
	return msg + ": want " + e.Want
}

func shown(s string) string {
	if len(s) > maxShown {
		return strconv.Quote(strings.ToValidUTF8(s[:maxShown], "")) + fmt.Sprintf("... (%d bytes)", len(s))
	}
	return strconv.Quote(s)
}

const (
	wantPort  = "a port from 1 to 65535"
	wantPorts = "ports from 0 to 65535 separated by commas, or nothing"
	wantCIDRs = "CIDRs such as 10.0.0.0/8 or fd00::/8 separated by commas, or nothing"
	wantOrAll = `"*" for all, `
	noAll     = `"*" is not allowed here`
)

// Limits of what one setting may list. Real pods stay far below; any rule set within these limits is written to the kernel within a
// second.
const (
	maxPorts      = 1000
	maxCIDRs      = 1000
	maxGroups     = 64
	maxInterfaces = 16
)

// blanks around an item are ignored; a YAML block ends with a newline.
const blanks = " \t\r\n"

// items splits a list at its commas and removes blanks around items. An empty item is an error.
func items(key, value, want string, limit int) ([]string, error) {
	if strings.Trim(value, blanks) == "" {
		return nil, nil
	}
	if n := strings.Count(value, ",") + 1; n > limit {
		return nil, &ValueError{Key: key, Value: value, Want: want, Why: fmt.Sprintf("%d items are more than the %d that are allowed", n, limit)}
	}
	out := strings.Split(value, ",")
	for i, item := range out {
		if out[i] = strings.Trim(item, blanks); out[i] == "" {
			return nil, &ValueError{Key: key, Value: value, Want: want, Why: fmt.Sprintf("item %d is empty", i+1)}
		}
	}
	return out, nil
}

// portList parses a list in which "*" is not allowed.
func portList(key, value string) ([]uint16, error) {
	parts, err := items(key, value, wantPorts, maxPorts)
	if err != nil {
		return nil, err
	}
	var out []uint16
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			why := fmt.Sprintf("item %d, %s, is no port", i+1, shown(part))
			if part == "*" {
				why = noAll
			}
			return nil, &ValueError{Key: key, Value: value, Want: wantPorts, Why: why}
		}
		out = append(out, uint16(n))
	}
	return out, nil
}

// ports parses a list that may be "*".
func ports(key, value string) (iptables.Ports, error) {
	if strings.Trim(value, blanks) == "*" {
		return iptables.Ports{All: true}, nil
	}
	list, err := portList(key, value)
	return iptables.Ports{List: list}, allToo(err)
}

// cidrList parses a list in which "*" is not allowed. An IPv4 address in its IPv6 form is an error, unless ignored is to be told of it.
func cidrList(key, value string, ignored func(format string, args ...any)) ([]netip.Prefix, error) {
	parts, err := items(key, value, wantCIDRs, maxCIDRs)
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for i, part := range parts {
		p, err := netip.ParsePrefix(part)
		mapped := err == nil && p.Addr().Is4In6()
		why := ""
		switch {
		case part == "*":
			why = noAll
		case err != nil && !strings.Contains(part, "/"):
			why = fmt.Sprintf("item %d, %s, has no prefix length", i+1, shown(part))
		case err != nil:
			why = fmt.Sprintf("item %d, %s, is no CIDR", i+1, shown(part))
		case mapped && ignored != nil:
			// Istio treats it as an IPv6 prefix, which matches no packet.
			ignored("%s: item %d, %s, is ignored as by Istio: no packet has an IPv4 address in its IPv6 form", key, i+1, shown(part))
			continue
		case mapped:
			why = fmt.Sprintf("item %d, %s, is an IPv4 address in its IPv6 form, which no packet has: write it as IPv4", i+1, shown(part))
		}
		if why != "" {
			return nil, &ValueError{Key: key, Value: value, Want: wantCIDRs, Why: why}
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// ownCIDRs parses the list of one of our keys.
func ownCIDRs(key, value string) ([]netip.Prefix, error) { return cidrList(key, value, nil) }

// cidrs parses a list that may be "*".
func cidrs(key, value string, ignored func(format string, args ...any)) (iptables.CIDRs, error) {
	if strings.Trim(value, blanks) == "*" {
		return iptables.CIDRs{All: true}, nil
	}
	list, err := cidrList(key, value, ignored)
	return iptables.CIDRs{List: list}, allToo(err)
}

// allToo adds to an error that "*" alone would have been valid.
func allToo(err error) error {
	if e, ok := err.(*ValueError); ok { //nolint:errorlint // made a line ago, by ourselves
		e.Want = wantOrAll + e.Want
		if e.Why == noAll {
			e.Why = `"*" stands for all, and must be the only item`
		}
		return e
	}
	return err
}

const wantInterfaces = "interface names of at most 15 letters, digits, _, - and ., starting with a letter, separated by commas"

// interfaceName is Istio's rule for names: it refuses wildcards and characters that a shell interprets.
func interfaceName(name string) bool {
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '_' && c != '-' && c != '.') {
			return false
		}
	}
	return len(name) <= 15
}

func interfaceList(key, value string) ([]string, error) {
	parts, err := items(key, value, wantInterfaces, maxInterfaces)
	if err != nil {
		return nil, err
	}
	for i, part := range parts {
		if !interfaceName(part) {
			return nil, &ValueError{Key: key, Value: value, Want: wantInterfaces, Why: fmt.Sprintf("item %d, %s, is no interface name", i+1, shown(part))}
		}
	}
	return parts, nil
}

// onePort parses the proxy's listen port.
func onePort(key, value string) (uint16, error) {
	n, err := strconv.ParseUint(strings.Trim(value, blanks), 10, 16)
	if err != nil || n == 0 {
		return 0, &ValueError{Key: key, Value: value, Want: wantPort}
	}
	return uint16(n), nil
}
