// Package requests holds the table of what each operation costs the ensemble. Its test counts anew, in virtual time and
// with the server of package zktest, and fails if a number has changed.
package requests

import _ "embed"

// Table is the table in Markdown.
//
//go:embed table.md
var Table string
