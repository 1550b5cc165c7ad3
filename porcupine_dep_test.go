package zklock

import _ "github.com/anishathalye/porcupine"
