package iptables

// The values of Language in a Listing.
const (
	LanguageNft      = "nft"
	LanguageIptables = "iptables"
)

// Listing is the rules of a namespace, with counters: as text in the language of their backend, as a View for machines, and in words.
type Listing struct {
	Backend  string // wrote the rules; "" if there are none
	Language string
	Text     string
	View     View
	Lines    []Line
}
