package intent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
// second. One rule of iptables can name 64 groups.
const (
	maxPorts      = 1000
	maxCIDRs      = 1000
	maxGroups     = 64
	maxInterfaces = 16
)

// blanks around an item are ignored; a YAML block ends with a newline.
const blanks = " \t\r\n"

// items parses a list: items between commas, of which none is empty, with blanks around them. An error of parse completes a sentence about the item.
func items[T any](key, value, want string, limit int, parse func(item string) (T, error)) (out []T, err error) {
	if strings.Trim(value, blanks) == "" {
		return nil, nil
	}
	wrong := func(format string, args ...any) ([]T, error) {
		return nil, &ValueError{Key: key, Value: value, Want: want, Why: fmt.Sprintf(format, args...)}
	}
	if n := strings.Count(value, ",") + 1; n > limit {
		return wrong("%d items are more than the %d that are allowed", n, limit)
	}
	for i, item := range strings.Split(value, ",") {
		item = strings.Trim(item, blanks)
		parsed, err := parse(item)
		switch {
		case item == "":
			return wrong("item %d is empty", i+1)
		case err != nil && item == "*":
			return wrong(noAll)
		case err != nil:
			return wrong("item %d, %s, %s", i+1, shown(item), err)
		}
		out = append(out, parsed)
	}
	return out, nil
}

// portList parses a list in which "*" is not allowed.
func portList(key, value string) ([]uint16, error) {
	return items(key, value, wantPorts, maxPorts, func(item string) (uint16, error) {
		n, err := strconv.ParseUint(item, 10, 16)
		if err != nil {
			return 0, errors.New("is no port")
		}
		return uint16(n), nil
	})
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
	out, err := items(key, value, wantCIDRs, maxCIDRs, func(item string) (netip.Prefix, error) {
		p, err := netip.ParsePrefix(item)
		switch {
		case err != nil && !strings.Contains(item, "/"):
			return p, errors.New("has no prefix length")
		case err != nil:
			return p, errors.New("is no CIDR")
		case p.Addr().Is4In6() && ignored == nil:
			return p, errors.New("is an IPv4 address in its IPv6 form, which no packet has: write it as IPv4")
		case p.Masked().Addr().Is4In6(): // Istio treats it as an IPv6 prefix: a wider one, such as ::ffff:0.0.0.0/0, matches packets
			ignored("%s: %s is ignored as by Istio: no packet has an IPv4 address in its IPv6 form", key, shown(item))
			return netip.Prefix{}, nil
		}
		return p.Masked(), nil
	})
	return slices.DeleteFunc(out, func(p netip.Prefix) bool { return !p.IsValid() }), err
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
	return items(key, value, wantInterfaces, maxInterfaces, func(item string) (string, error) {
		if !interfaceName(item) {
			return "", errors.New("is no interface name")
		}
		return item, nil
	})
}

// onePort parses the proxy's listen port.
func onePort(key, value string) (uint16, error) {
	n, err := strconv.ParseUint(strings.Trim(value, blanks), 10, 16)
	if err != nil || n == 0 {
		return 0, &ValueError{Key: key, Value: value, Want: wantPort}
	}
	return uint16(n), nil
}
